#pragma once

#include <functional>
#include <memory>

#include "csrc/base/event.h"
#include "csrc/cuda/driver.h"

namespace aiacc {

/// A moment of a stream that the host wants to know of, asleep meanwhile: the driver tells it.
///
/// Threads: one at a time. May end before the moment has come.
class StreamSignal {
 public:
  /// The moment is now the present end of `stream`. `wait` has returned for the last one, if there
  /// was one. Needs a Device::Scope. Throws Error(kEngine) if the driver fails.
  void arm(const CudaDriver& driver, CudaStream stream);

  /// Blocks until the moment. Calls `check`, which may throw, whenever `interrupt`, a descriptor,
  /// is readable, and a few times a second. Needs a Device::Scope. Throws Error(kEngine) if the
  /// device has failed: then it calls nobody back.
  void wait(int interrupt, const std::function<void()>& check);

 private:
  const CudaDriver* driver_ = nullptr;
  CudaStream stream_ = nullptr;
  std::shared_ptr<Event> reached_ = std::make_shared<Event>();  ///< the driver's, too
};

}  // namespace aiacc
