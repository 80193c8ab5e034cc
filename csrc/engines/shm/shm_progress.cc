#include "csrc/engines/shm/shm_progress.h"

#include <atomic>
#include <chrono>
#include <new>
#include <utility>

#include "csrc/base/event.h"

namespace aiacc {
namespace {

constexpr std::size_t kCacheLine = 64;
/// A counter is read this often between two looks at the clock.
constexpr int kLooks = 16;

/// After so much sleep, whatever signals come meanwhile, others may see that this rank waits.
constexpr std::chrono::milliseconds kLookEvery{500};

}  // namespace

struct ShmProgress::Header {
  alignas(kCacheLine) std::atomic<std::uint64_t> done[3];  ///< blocks, by Step
  /// Rank + 1 that the owner sleeps for, 0 when awake.
  alignas(kCacheLine) std::atomic<std::uint32_t> sleeps_for;
  std::atomic<std::uint32_t> doorbell;
};

std::size_t ShmProgress::header_bytes() { return sizeof(Header); }

void ShmProgress::reset(void* header) {
  // Only such atomics work between processes.
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  auto* fresh = new (header) Header;
  for (auto& count : fresh->done) {
    count.store(0, std::memory_order_relaxed);
  }
  fresh->sleeps_for.store(0, std::memory_order_relaxed);
  fresh->doorbell.store(0, std::memory_order_release);
}

ShmProgress::ShmProgress(std::vector<void*> headers,
                         int rank,
                         double spin_us,
                         const Cancellation& cancellation)
    : headers_(std::move(headers)),
      rank_(rank),
      spin_(duration_of(spin_us * 1e-6)),
      cancellation_(cancellation) {}

ShmProgress::Header& ShmProgress::header(int rank) const {
  return *static_cast<Header*>(headers_[static_cast<std::size_t>(rank)]);
}

void ShmProgress::announce(Step step, std::uint64_t count) {
  header(rank_).done[step].store(count, std::memory_order_seq_cst);
  for (int rank = 0; rank < size(); ++rank) {
    Header& peer = header(rank);
    // Sequentially consistent with sleep_until: either we see that the peer goes to sleep, or the
    // peer sees the counter.
    if (rank != rank_ &&
        peer.sleeps_for.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(rank_) + 1) {
      peer.doorbell.fetch_add(1, std::memory_order_seq_cst);
      futex_wake(peer.doorbell);
    }
  }
}

void ShmProgress::wait_for_others(Step step, std::uint64_t count) {
  for (int distance = 1; distance < size(); ++distance) {
    wait_for((rank_ + distance) % size(), step, count);
  }
}

void ShmProgress::wait_for(int rank, Step step, std::uint64_t count) {
  const auto& done = header(rank).done[step];
  if (done.load(std::memory_order_acquire) >= count) {
    return;
  }
  spin_.begin();
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (done.load(std::memory_order_acquire) >= count) {
        spin_.end();
        return;
      }
      relax();
    }
  } while (spin_.again());
  sleep_until(rank, step, count);
}

void ShmProgress::sleep_until(int rank, Step step, std::uint64_t count) {
  const auto& done = header(rank).done[step];
  Header& self = header(rank_);
  const auto start = Clock::now();
  for (;;) {
    // The order matters: whoever changes what we look at afterwards rings the doorbell, so that
    // the futex finds another value than `rung` and does not sleep.
    const std::uint32_t rung = self.doorbell.load(std::memory_order_seq_cst);
    self.sleeps_for.store(static_cast<std::uint32_t>(rank) + 1, std::memory_order_seq_cst);
    if (done.load(std::memory_order_seq_cst) >= count) {
      self.sleeps_for.store(0, std::memory_order_relaxed);
      mark_.moves();
      return;
    }
    cancellation_.check();
    if (!futex_wait(self.doorbell, rung, Clock::now() + kLookEvery)) {
      mark_.sleeps(start, rank);
    }
  }
}

void ShmProgress::wake() noexcept {
  header(rank_).doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(header(rank_).doorbell);
}

}  // namespace aiacc
