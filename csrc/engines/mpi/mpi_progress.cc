#include "csrc/engines/mpi/mpi_progress.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "csrc/base/event.h"
#include "csrc/base/thread.h"
#include "csrc/engines/mpi/mpi_request.h"

namespace aiacc {
namespace {

constexpr auto kShortestNap = std::chrono::milliseconds(1);
constexpr auto kLongestNap = std::chrono::milliseconds(10);
constexpr auto kRest = std::chrono::seconds(1);
/// A nap lasts this fraction of the time since MPI was last waited for.
constexpr int kNapsOfAPause = 4;
/// MPICH over OFI sends one queued message in a call.
constexpr int kCallsBetweenNaps = 8;
constexpr int kCallsBetweenRests = 64;

}  // namespace

MpiProgress::MpiProgress(const MpiPlugin& plugin, MpiHandle communicator)
    : plugin_(plugin),
      communicator_(communicator),
      thread_(start_thread("aiacc mpi", [this] { run(); })) {}

MpiProgress::~MpiProgress() { stop(); }

void MpiProgress::rest(bool rests) noexcept {
  std::unique_lock lock(mutex_);
  rests_ = rests;
  wake_.notify_all();
  outside_.wait(lock, [this] { return !rests_ || !calling_; });
}

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
  auto since = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    const bool rests = rests_;
    const Clock::duration part = (Clock::now() - since) / kNapsOfAPause;
    const auto nap = rests ? kRest : std::clamp<Clock::duration>(part, kShortestNap, kLongestNap);
    if (wake_.wait_for(lock, nap, [&] { return stopped_ || rests_ != rests; })) {
      continue;
    }
    calling_ = true;
    lock.unlock();
    for (int i = 0; i < (rests ? kCallsBetweenRests : kCallsBetweenNaps); ++i) {
      plugin_.progress(communicator_);
    }
    lock.lock();
    calling_ = false;
    outside_.notify_all();
    const std::uint32_t over = requests_done();
    since = over == seen ? since : Clock::now();
    seen = over;
  }
}

}  // namespace aiacc
