// A node that broadcasts tensors, each by an operation of its own, all of them at the same time.
#pragma once

#include <memory>

#include "csrc/bindings/tensorflow/constants.h"
#include "csrc/bindings/tensorflow/execution.h"

namespace aiacc::tensorflow {

/// Submits one run of the node, and does not wait for its end. The operations of several tensors
/// have the node's name and [0], [1] and so on; if some fail, the run ends with the error of the
/// first of them, once all are over. Threads: any.
void start_broadcasts(const Constants& constants, std::unique_ptr<Execution> execution) noexcept;

}  // namespace aiacc::tensorflow
