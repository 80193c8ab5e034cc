#include "csrc/engines/mpi/mpi_request.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/thread.h"

namespace aiacc {
namespace {

constexpr auto kShortestNap = std::chrono::microseconds(20);
constexpr auto kLongestNap = std::chrono::microseconds(250);
/// A nap lasts this fraction of the wait so far, so it delays what is waited for by no more.
constexpr int kNapsOfAWait = 4;
/// Waits that nap. The longest nap is so many times kLongestNap: a process tests as often however
/// many lanes wait, and between two tests each lane receives the less the more they are.
std::atomic<int> napping{0};

struct Napping {
  Napping() { napping.fetch_add(1, std::memory_order_relaxed); }
  ~Napping() { napping.fetch_sub(1, std::memory_order_relaxed); }
};

constexpr unsigned long kTimerSlackNs = 1000;
constexpr auto kLookEvery = std::chrono::milliseconds(5);

std::atomic<int> running_calls{0};
std::atomic<std::uint32_t> done_requests{0};

/// The kernel's default lets a sleep of 20 us take 70.
void sharpen_timer() {
  thread_local const bool sharp = prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0) == 0;
  static_cast<void>(sharp);
}

}  // namespace

void check_mpi(const MpiPlugin& plugin, int code, const char* call) {
  if (code != 0) {
    char text[512] = "";
    plugin.describe(code, text, sizeof text);
    throw Error(Code::kEngine,
                std::string("[mpi] ") + call + " failed: " + text + " (error " +
                    std::to_string(code) + "); see the messages of mpirun and of the other ranks");
  }
}

void wait_for_request(const MpiPlugin& plugin,
                      MpiHandle* request,
                      Spin& spin,
                      const WaitCheck& check) {
  const auto is_done = [&] {
    int done = 0;
    check_mpi(plugin, plugin.test(request, &done), "MPI_Test");
    if (done != 0) {
      done_requests.fetch_add(1, std::memory_order_relaxed);
    }
    return done != 0;
  };
  spin.begin();
  do {
    if (is_done()) {
      spin.end();
      return;
    }
  } while (spin.again());
  sharpen_timer();
  const Napping counted;
  const auto start = Clock::now();
  while (!is_done()) {
    check();
    const Clock::duration part = (Clock::now() - start) / kNapsOfAWait;
    const Clock::duration most = kLongestNap * napping.load(std::memory_order_relaxed);
    std::this_thread::sleep_for(std::clamp<Clock::duration>(part, kShortestNap, most));
  }
}

std::uint32_t requests_done() noexcept { return done_requests.load(std::memory_order_relaxed); }

void wait_for_call(const MpiPlugin& plugin,
                   std::function<int()> call,
                   const char* name,
                   const WaitCheck& check) {
  const auto promise = std::make_shared<std::promise<int>>();
  std::future<int> code = promise->get_future();
  running_calls.fetch_add(1);
  try {
    start_thread("aiacc mpi call", [promise, call = std::move(call)] {
      const int result = call();
      running_calls.fetch_sub(1);
      promise->set_value(result);
    }).detach();
  } catch (...) {
    running_calls.fetch_sub(1);
    throw;
  }
  while (code.wait_for(kLookEvery) != std::future_status::ready) {
    check();
  }
  check_mpi(plugin, code.get(), name);
}

int calls_under_way() noexcept { return running_calls.load(); }

WaitCheck deadline_check(const char* what, double timeout_s, const WaitCheck& also) {
  const auto deadline = Clock::now() + duration_of(timeout_s);
  return [=] {
    if (also) {
      also();
    }
    if (Clock::now() > deadline) {
      throw Error(Code::kTimeout,
                  std::string("[mpi] waited ") + what + " for " + std::to_string(timeout_s) +
                      " s; a rank did not come: look for its error, or raise "
                      "AIACC_CONNECT_TIMEOUT_S");
    }
  };
}

}  // namespace aiacc
