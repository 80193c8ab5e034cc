#include "csrc/cuda/stream_signal.h"

#include <chrono>

namespace aiacc {
namespace {

constexpr std::chrono::milliseconds kLook{100};

}  // namespace

void StreamSignal::arm(const CudaDriver& driver, CudaStream stream) {
  driver_ = &driver;
  stream_ = stream;
  auto owned = std::make_unique<std::shared_ptr<Event>>(reached_);
  const auto tell = [](void* argument) {
    const std::unique_ptr<std::shared_ptr<Event>> reached(
        static_cast<std::shared_ptr<Event>*>(argument));
    (*reached)->set();
  };
  AIACC_CUDA_CHECK(driver, launch_host_function, stream, tell, owned.get());
  static_cast<void>(owned.release());  // the driver's now
}

void StreamSignal::wait(int interrupt, const std::function<void()>& check) {
  pollfd events[2] = {{reached_->fd(), POLLIN, 0}, {interrupt, POLLIN, 0}};
  while (true) {
    poll_until(events, 2, Clock::now() + kLook);
    if (events[0].revents != 0) {
      reached_->clear();
      return;
    }
    check();
    if (const CudaResult state = driver_->stream_query(stream_); state != kCudaNotReady) {
      check_cuda(*driver_, state, "stream_query");
    }
  }
}

}  // namespace aiacc
