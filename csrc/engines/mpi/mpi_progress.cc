#include "csrc/engines/mpi/mpi_progress.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "csrc/base/thread.h"
#include "csrc/engines/mpi/mpi_request.h"

namespace aiacc {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kShortestNap = std::chrono::milliseconds(1);
constexpr auto kLongestNap = std::chrono::milliseconds(10);
/// A nap lasts this fraction of the time since MPI was last waited for.
constexpr int kNapsOfAPause = 4;
/// MPICH over OFI sends one queued message in a call.
constexpr int kCallsBetweenNaps = 8;

}  // namespace

MpiProgress::MpiProgress(const MpiPlugin& plugin, MpiHandle communicator)
    : plugin_(plugin),
      communicator_(communicator),
      thread_(start_thread("aiacc mpi", [this] { run(); })) {}

MpiProgress::~MpiProgress() { stop(); }

void MpiProgress::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) {
    thread_.join();
  }
}

void MpiProgress::run() {
  std::uint32_t seen = requests_done();
  auto since = SteadyClock::now();
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    lock.unlock();
    for (int i = 0; i < kCallsBetweenNaps; ++i) {
      plugin_.progress(communicator_);
    }
    lock.lock();
    const auto now = SteadyClock::now();
    const std::uint32_t over = requests_done();
    since = over == seen ? since : now;
    seen = over;
    const SteadyClock::duration part = (now - since) / kNapsOfAPause;
    wake_.wait_for(lock,
                   std::clamp<SteadyClock::duration>(part, kShortestNap, kLongestNap),
                   [this] { return stopped_; });
  }
}

}  // namespace aiacc
