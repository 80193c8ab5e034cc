#pragma once

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace aiacc {

/// "process 123 on host-4", for errors that all ranks hear.
std::string this_process();

/// Starts a thread that runs `body`, which must not throw; the system shows the first 15 characters
/// of `name`. Throws Error(kEngine) with process, host, name and remedy if the system has no room
/// for another thread; then nothing has been started, and `body` is gone.
std::thread start_thread(const std::string& name, std::function<void()> body);

/// Threads that do nothing: until this ends there is room for as many. Throws what start_thread
/// throws, and then leaves none.
class ThreadReserve {
 public:
  explicit ThreadReserve(int count);
  ~ThreadReserve() { release(); }
  ThreadReserve(const ThreadReserve&) = delete;
  ThreadReserve& operator=(const ThreadReserve&) = delete;

  /// Returns when they have ended. Idempotent, one thread at a time.
  void release();

 private:
  std::promise<void> over_;
  std::vector<std::thread> threads_;
};

}  // namespace aiacc
