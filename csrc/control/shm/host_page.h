#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/socket.h"
#include "csrc/control/round.h"
#include "csrc/control/shm/memory_sharing.h"
#include "csrc/control/shm/unix_socket.h"

namespace aiacc {

/// Where the ranks of a host show each other what they give to rounds, in memory that all of them
/// map.
///
/// A rank has a part with two *boards*, for its share and for the result that it tells the others.
/// A board has room for two rounds. Whoever shows something in a round has read all of the round
/// before the last one: nothing is overwritten that is still read, and a rank that dies while it
/// writes has shown nothing. What is too large for a board is announced there, and comes by socket.
///
/// Threads: one, if nothing else is said. What sleeps is the loop thread, in poll, and a caller in
/// its place, on a word of memory; both at once only if the loop thread has no round to wait for.
class HostPage {
 public:
  enum Board { kShare, kResult };

  /// Collective over `ranks`, ascending, this one among them. Throws Error(kEngine) on all of them
  /// if one cannot map the memory, else what `share_memory` throws.
  HostPage(Connector& connector, const std::vector<int>& ranks, double timeout_s);

  int size() const { return static_cast<int>(parts_.size()); }
  /// The index of this rank.
  int own() const { return own_; }

  /// Shows a message of the round, those before in their order. False if it is too large, so that
  /// others know that it comes by socket. Wakes all others if they wait for nothing else: it is the
  /// result, or the last share.
  bool show(Board board, std::uint64_t round, const Bytes& message) noexcept;
  /// Whether the rank of this index has shown that of the round.
  bool shows(int index, Board board, std::uint64_t round) const noexcept;
  /// After `shows`: copies it. False: it comes by socket. Throws Error(kPeerLost) if it cannot be.
  bool read(int index, Board board, std::uint64_t round, Bytes& message) const;
  bool by_socket(int index, Board board, std::uint64_t round) const noexcept;
  /// How many other ranks have shown their shares of the round.
  int shares(std::uint64_t round) const noexcept;
  /// The flags of those, see `flags_of`.
  std::uint32_t flags(std::uint64_t round) const noexcept;

  /// Wakes those others that have not shown their shares of the round, if they have one or `all` is
  /// true. Of those who wake a rank that sleeps, only the first pays for it.
  void call_in(std::uint64_t round, bool all) noexcept;
  /// Whether this rank has a share for the next round, whoever starts it. Any thread.
  void has_share(bool has) noexcept;

  /// Readable when the loop thread was rung for.
  int bell() const { return bell_.fd(); }
  void clear_bell() noexcept { bell_.clear(); }
  /// A caller runs a round until it says otherwise: others wake it and not the loop thread.
  void caller_runs(bool runs) noexcept;
  /// The loop thread, or the caller that runs, is about to sleep, or has slept. What was shown
  /// before it said so does not wake it: look afterwards.
  void sleeps(Runner runner, bool sleeps) noexcept;
  /// The caller sleeps until another rank wakes it, `nudge`, or the deadline.
  void sleep_as_caller(Clock::time_point deadline) noexcept;
  /// Makes the caller that sleeps, or is about to, look around. Any thread.
  void nudge() noexcept;

 private:
  struct Part;

  void wake(int index) noexcept;
  static void wake_caller(Part& part) noexcept;
  Part& part(int index) const { return *parts_[static_cast<std::size_t>(index)]; }

  UnixSocket bell_;
  int own_ = 0;
  std::vector<int> ranks_;
  HostMemory memory_;
  std::vector<Part*> parts_;
  std::vector<std::string> bells_;  ///< names, by index
};

}  // namespace aiacc
