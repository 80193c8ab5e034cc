#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace aiacc {

/// Numbers the chunks of tensors, for the kernels of optimizers.
class TensorChunks {
 public:
  /// The first chunk of the next tensor, of so many elements. Throws Error(kInvalidArgument) beyond
  /// 2^31 chunks.
  std::uint32_t take(std::uint64_t count);
  /// Chunks of all tensors.
  std::uint32_t taken() const { return static_cast<std::uint32_t>(taken_); }

 private:
  std::uint64_t taken_ = 0;
};

/// Whether the arrays of tensor `number`, of which some may be null, are aligned for accesses of 16
/// bytes. Throws Error(kInvalidArgument), which says what of, if one is at no multiple of 4.
bool check_tensor(const char* what,
                  std::size_t number,
                  std::initializer_list<const void*> addresses);

/// Bytes of memory of the device that a step of an optimizer needs meanwhile, at a multiple of 16.
/// Pure.
std::size_t optim_workspace_bytes(std::size_t tensors);

}  // namespace aiacc
