#include "csrc/base/thread.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {

std::string this_process() {
  char host[256] = "";
  const bool known = gethostname(host, sizeof host - 1) == 0;
  return "process " + std::to_string(getpid()) + " on " + (known ? host : "this host");
}

std::thread start_thread(const std::string& name, std::function<void()> body) {
  try {
    return std::thread([shown = name.substr(0, 15), body = std::move(body)] {
      prctl(PR_SET_NAME, shown.c_str());
      body();
    });
  } catch (const std::system_error& error) {
    throw Error(Code::kEngine,
                "[core] " + this_process() + " cannot start a thread (" + name + "): " +
                    error.code().message() + " (errno " + std::to_string(error.code().value()) +
                    ", expected room for one more); raise the user's limit of processes "
                    "(ulimit -u) or the pids limit of the container (docker run --pids-limit), or "
                    "use fewer lanes (AIACC_LANES)");
  }
}

ThreadReserve::ThreadReserve(int count) {
  const std::shared_future<void> over = over_.get_future();
  threads_.reserve(static_cast<std::size_t>(count));
  try {
    while (threads_.size() < static_cast<std::size_t>(count)) {
      threads_.push_back(start_thread("aiacc reserve", [over] { over.wait(); }));
    }
  } catch (...) {
    release();
    throw;
  }
}

void ThreadReserve::release() {
  if (threads_.empty()) {
    return;
  }
  over_.set_value();
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

}  // namespace aiacc
