#include "csrc/kernels/check_finite.h"

#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/narrow.h"
#include "csrc/kernels/scale.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

/// Bits of infinity; NaN has larger ones, finite numbers have smaller ones.
std::uint64_t infinity_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return 0x7c00;
    case DataType::kBFloat16:
      return 0x7f80;
    case DataType::kFloat32:
      return 0x7f800000;
    case DataType::kFloat64:
      return 0x7ff0000000000000;
    default:
      throw Error(Code::kUnsupported,
                  std::string("[kernels] a check of ") + name_of(dtype) +
                      " for NaN (expected a floating-point type); switch the check off for it");
  }
}

}  // namespace

CopyReport check_finite(
    const void* in, std::size_t count, DataType dtype, double factor, WireFormat wire) {
  static const VectorLevel& level = *runnable_vector_levels().front();
  const std::uint64_t infinity = infinity_of(dtype);
  const std::uint64_t largest = level.largest_magnitude(in, count, dtype);
  CopyReport report;
  report.nan = static_cast<std::uint8_t>(largest > infinity);
  report.infinite = static_cast<std::uint8_t>(largest == infinity);
  const bool narrows = wire != WireFormat::kTensor && !is_coded(wire);
  if (largest < infinity && (factor != 1.0 || narrows)) {
    // Both keep the order: if the largest input does not overflow, none does. Its bits come first
    // in the 64-bit number, for the machine is little-endian.
    const DataType sent = narrows ? dtype_on_wire(dtype, wire) : dtype;
    std::uint64_t made = 0;
    if (narrows) {
      narrow(&made, &largest, 1, sent, factor);
    } else {
      scale(&made, &largest, 1, dtype, factor);
    }
    report.overflow =
        static_cast<std::uint8_t>(level.largest_magnitude(&made, 1, sent) >= infinity_of(sent));
  }
  return report;
}

}  // namespace aiacc
