#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

namespace aiacc {

/// While it lives, signals interrupt every thread of the process, as those of a profiler do.
class Interruptions {
 public:
  Interruptions() {
    struct sigaction ignored{};
    ignored.sa_handler = [](int) {};  // without SA_RESTART: calls end with EINTR
    sigaction(SIGUSR1, &ignored, nullptr);
    thread_ = std::thread([this] {
      while (!over_) {
        for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
          syscall(SYS_tgkill, getpid(), std::stoi(thread.path().filename()), SIGUSR1);
        }
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
