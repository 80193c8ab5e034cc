#pragma once

#include <cstdint>

namespace aiacc {

/// The two kernels of a step of an optimizer, and their twins on the host: what `blocks` blocks do,
/// one thread after another, in either order.
template <class Batch>
struct OptimKernels {
  const char* first_name;  ///< in the device image; has batch.norm_blocks blocks
  const char* second_name;
  void (*first)(const Batch& batch, std::uint32_t blocks, bool backwards);
  void (*second)(const Batch& batch, std::uint32_t blocks, bool backwards);
};

/// Which of them a batch needs.
inline constexpr std::uint32_t kFirstKernel = 1;
inline constexpr std::uint32_t kSecondKernel = 2;

}  // namespace aiacc
