#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/base/spin.h"
#include "csrc/base/wait_mark.h"
#include "csrc/engines/cancellation.h"

namespace aiacc {

/// How far every rank of a node has come with a sequence of steps, in memory that all of them map.
///
/// Each rank owns a header with counters that only it writes, and a doorbell that others ring when
/// it sleeps for them. What was written before `announce` is visible after `wait_for`.
/// Threads: one at a time; `wake` from any.
class ShmProgress {
 public:
  /// The steps of a block: copied into the own slot, own piece reduced, taken from all others.
  enum Step { kPublished, kReduced, kConsumed };

  /// Bytes that a header takes; a multiple of 64, as its address must be.
  static std::size_t header_bytes();

  /// Brings the header of a rank to its initial state. No rank may be using it.
  static void reset(void* header);

  ShmProgress(std::vector<void*> headers,
              int rank,
              double spin_us,
              const Cancellation& cancellation);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(headers_.size()); }

  /// This rank has done `step` for `count` blocks; never less than before.
  void announce(Step step, std::uint64_t count);

  /// Blocks until `rank` has done `step` for `count` blocks: spins, then sleeps. Throws the status
  /// of the cancellation once it is set, provided that `wake` is called after that.
  void wait_for(int rank, Step step, std::uint64_t count);
  void wait_for_others(Step step, std::uint64_t count);

  /// As Engine::waits; the rank is that of the node. Any thread.
  LaneWait waits() const { return mark_.get(); }

  /// Makes a sleeping `wait_for` look at the cancellation.
  void wake() noexcept;

 private:
  struct Header;
  Header& header(int rank) const;
  void sleep_until(int rank, Step step, std::uint64_t count);

  const std::vector<void*> headers_;
  const int rank_;
  Spin spin_;
  const Cancellation& cancellation_;
  WaitMark mark_;
};

}  // namespace aiacc
