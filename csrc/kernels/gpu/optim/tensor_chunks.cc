#include "csrc/kernels/gpu/optim/tensor_chunks.h"

#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/optim/tensor_shares.h"

namespace aiacc {

std::uint32_t TensorChunks::take(std::uint64_t count) {
  const std::uint64_t first = taken_;
  taken_ += (count + kOptimChunk - 1) / kOptimChunk;
  if (taken_ > std::uint64_t{1} << 31) {
    throw Error(Code::kInvalidArgument,
                "[kernels] a step of an optimizer of " + std::to_string(taken_) + " chunks of " +
                    std::to_string(kOptimChunk) +
                    " elements (expected at most 2^31); use more parameter groups");
  }
  return static_cast<std::uint32_t>(first);
}

bool check_tensor(const char* what,
                  std::size_t number,
                  std::initializer_list<const void*> addresses) {
  bool is_aligned = true;
  for (const void* address : addresses) {
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    if (value % sizeof(float) != 0) {
      throw Error(Code::kInvalidArgument,
                  std::string("[kernels] tensor ") + std::to_string(number) + " of " + what +
                      " has an array at address " + std::to_string(value) +
                      " (expected a multiple of 4); copy it into memory of its own");
    }
    is_aligned = is_aligned && value % 16 == 0;
  }
  return is_aligned;
}

std::size_t optim_workspace_bytes(std::size_t tensors) {
  return (kMostOptimBlocks + tensors) * sizeof(SquareSums);
}

}  // namespace aiacc
