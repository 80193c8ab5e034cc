#pragma once

#include <cstdint>
#include <limits>

#include "csrc/kernels/host_device.h"

namespace aiacc {

/// Threads of a block of the kernel that adds pairs up.
inline constexpr std::uint32_t kAddPairsThreads = 256;

inline constexpr const char* kAddPairsKernel = "aiacc_add_pairs";

/// In place of an element, where an index is wrong.
inline constexpr float kLostPair = std::numeric_limits<float>::quiet_NaN();

/// The only argument of the kernel.
struct PairAddition {
  float* out;
  const float* values;
  const std::uint32_t* indices;
  std::uint32_t pairs;
  std::uint32_t count;  ///< of elements of `out`
};

/// What one of so many threads adds. Indices of one rank's pairs differ, so the order in which
/// threads come does not matter. An index beyond the elements, which another rank must have sent,
/// becomes a NaN that shows it.
AIACC_HOST_DEVICE inline void add_pairs_share(const PairAddition& plan,
                                              std::uint32_t thread,
                                              std::uint32_t threads) {
  for (std::uint64_t i = thread; i < plan.pairs; i += threads) {
    const std::uint32_t index = plan.indices[i];
    if (index < plan.count) {
      plan.out[index] += plan.values[i];
    } else {
      plan.out[i % plan.count] = kLostPair;
    }
  }
}

}  // namespace aiacc
