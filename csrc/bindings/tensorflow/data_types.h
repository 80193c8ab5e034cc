// TensorFlow's data types as the core numbers them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/bindings/c_api.h"

namespace aiacc::tensorflow {

inline constexpr int kInt32 = 3;
inline constexpr int kInt64 = 9;

/// The core's dtype; -1 for one that it does not know.
inline std::int32_t core_dtype(int dtype) {
  switch (dtype) {
    case 1:
      return AIACC_FLOAT32;
    case 2:
      return AIACC_FLOAT64;
    case kInt32:
      return AIACC_INT32;
    case 4:
      return AIACC_UINT8;
    case 5:
      return AIACC_INT16;
    case 6:
      return AIACC_INT8;
    case kInt64:
      return AIACC_INT64;
    case 10:
      return AIACC_BOOL;
    case 14:
      return AIACC_BFLOAT16;
    case 17:
      return AIACC_UINT16;
    case 19:
      return AIACC_FLOAT16;
    case 22:
      return AIACC_UINT32;
    case 23:
      return AIACC_UINT64;
    default:
      return -1;
  }
}

/// Bytes of an element of a dtype that the core knows.
inline std::size_t element_bytes(std::int32_t dtype) {
  constexpr std::size_t kBytes[] = {1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2, 4, 8};
  static_assert(sizeof kBytes / sizeof *kBytes == AIACC_UINT64 + 1);
  return kBytes[dtype];
}

}  // namespace aiacc::tensorflow
