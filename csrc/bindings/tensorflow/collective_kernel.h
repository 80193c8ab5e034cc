// The kernels: a node of a graph that submits one of the core's operations whenever it runs.
#pragma once

#include <memory>

#include "csrc/bindings/tensorflow/execution.h"
#include "csrc/bindings/tensorflow/op_specs.h"

namespace aiacc::tensorflow {

class Kernel {
 public:
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;

  /// Starts one run, and does not wait for its end; the kernel may be gone by then. Threads: any.
  virtual void start(std::unique_ptr<Execution> execution) const noexcept = 0;
};

/// Throws OpError.
std::unique_ptr<Kernel> make_kernel(const OpSpec& spec, const Attributes& attributes);

}  // namespace aiacc::tensorflow
