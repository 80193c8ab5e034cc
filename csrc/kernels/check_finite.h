#pragma once

#include <cstddef>

#include "csrc/base/dtype.h"
#include "csrc/kernels/batch_copy.h"

namespace aiacc {

/// What is not finite among `count` floats in host memory at any address, or will not be after
/// `scale` by `factor`, or `narrow`: what a checked copy on a GPU reports of one segment. Where
/// there is NaN, nothing else is told. Elements that travel coded are not narrowed; `wire` is no
/// other one of 8 bits. Throws Error(kUnsupported) for a dtype that is not floating.
CopyReport check_finite(const void* in,
                        std::size_t count,
                        DataType dtype,
                        double factor = 1.0,
                        WireFormat wire = WireFormat::kTensor);

}  // namespace aiacc
