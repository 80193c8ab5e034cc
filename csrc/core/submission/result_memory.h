#pragma once

#include <cstddef>

#include "csrc/core/submission/tensor_table.h"

namespace aiacc {

/// Makes `buffers.gathered`, of a tensor of `operation`, so large, and returns where it is; its
/// contents are not set. How large it must be is the other ranks' decision: throws Error(kEngine)
/// with the operation and the bytes if this process cannot have so much.
void* make_result(TensorBuffers& buffers, std::size_t bytes, const Operation& operation);

}  // namespace aiacc
