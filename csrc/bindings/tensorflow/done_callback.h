// The end of an asynchronous kernel, in TensorFlow's C interface.
#pragma once

#include <functional>

#include "csrc/bindings/tensorflow/tensorflow_abi.h"

namespace aiacc::tensorflow {

/// What to call when the kernel is done, from any thread.
///
/// What TensorFlow hands out is a std::function<void()> that dies when the kernel's compute
/// returns, so calling it later by TF_RunAsyncOpKernelDoneCallback crashes. A copy lives on.
std::function<void()> copy_of(TF_AsyncOpKernelDoneCallback* done);

/// Whether it has the layout that libstdc++ gives a std::function: else `copy_of` would crash.
bool can_copy(const TF_AsyncOpKernelDoneCallback* done);

}  // namespace aiacc::tensorflow
