#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

namespace aiacc {

/// While it lives, signals interrupt the thread that made it, as those of a profiler do.
class Interruptions {
 public:
  Interruptions() {
    struct sigaction ignored{};
    ignored.sa_handler = [](int) {};  // without SA_RESTART: calls end with EINTR
    sigaction(SIGUSR1, &ignored, nullptr);
    thread_ = std::thread([this, target = pthread_self()] {
      while (!over_) {
        pthread_kill(target, SIGUSR1);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;
  ~Interruptions() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace aiacc
