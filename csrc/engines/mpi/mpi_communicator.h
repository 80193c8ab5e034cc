#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/engines/mpi/mpi_plugin.h"
#include "csrc/engines/mpi/mpi_request.h"
#include "csrc/engines/mpi/pages.h"

namespace aiacc {

/// What one lane of an engine works with. Lives in the communicator; engines borrow it.
struct MpiLane {
  MpiHandle communicator = 0;    ///< MPI's, of all ranks, for this lane alone
  std::byte* staging = nullptr;  ///< what MPI reads and writes there
  std::size_t staging_bytes = 0;
};

/// How far a rank has come on one lane since its communicators were made. What MPI does on them
/// only fits together while all ranks have made the same calls there.
struct MpiLaneUse {
  unsigned completed = 0;  ///< operations
  bool failed = false;     ///< one ended in the middle: MPI may still write to the lane's memory
};

/// Ranks that an engine connects: all of the job, or some. Used by any number of engines one after
/// the other.
///
/// MPI's communicators are made collectively, so they are kept for the next engine when one is
/// destroyed, which happens at a time of each rank's own choice; and so is what MPI may write to.
/// Threads: one at a time, except `spoil`. Blocking: where said, up to the timeout or until the
/// caller's `interrupt` throws.
class MpiCommunicator {
 public:
  /// `handle` is the communicator's own from now on. Throws Error.
  MpiCommunicator(const MpiPlugin& plugin, MpiHandle handle, double timeout_s);
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  const MpiPlugin& plugin() const { return plugin_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  MpiHandle handle() const { return setup_; }

  /// `count` lanes in their initial state. Collective, blocks. Throws Error(kEngine) on every rank
  /// if one has no memory for them; the communicator is as before then.
  std::vector<MpiLane> acquire(int count, const WaitCheck& interrupt = {});

  /// For the thread of an acquired lane, to note what becomes of each operation.
  MpiLaneUse& use(int lane) { return *uses_[static_cast<std::size_t>(lane)]; }

  /// How often lanes were acquired: equal on all ranks.
  std::uint32_t generation() const { return static_cast<std::uint32_t>(generation_); }

  /// An operation of an acquired lane ended in the middle of a request. Any thread.
  void spoil() noexcept { spoilt_.store(true); }

  /// Whether ranks may be missing: an operation failed, and they have not all met since.
  bool broken() const { return failed_ || spoilt_.load(); }

  /// Element-wise maximum over all ranks. Collective, blocks; `what` says what for.
  std::vector<int> maximum(std::vector<int> values,
                           const char* what,
                           const WaitCheck& interrupt = {});

  /// `buffers` are what MPI uses until then: kept for good if the wait fails.
  void wait(MpiHandle request,
            const char* what,
            std::shared_ptr<void> buffers,
            const WaitCheck& interrupt = {});

 private:
  /// Drops lanes on which the ranks have made different numbers of calls.
  void drop_lanes(const std::vector<int>& state);
  /// Collective: more lanes, `count` in all.
  void add_lanes(std::size_t count, const WaitCheck& interrupt);
  /// Collective: memory for so many lanes, on every rank or, with an error, on none.
  std::vector<Pages> make_memory(std::size_t lanes, const WaitCheck& interrupt);
  /// Collective: another communicator of MPI's, of all ranks.
  MpiHandle duplicate(const WaitCheck& interrupt);

  const MpiPlugin& plugin_;
  const double timeout_s_;
  bool failed_ = false;  ///< the ranks no longer agree about what comes next on `setup_`
  int generation_ = 0;
  std::atomic<bool> spoilt_{false};
  int rank_ = 0;
  int size_ = 1;
  MpiHandle setup_ = 0;  ///< not used by lanes
  std::vector<MpiLane> lanes_;
  std::vector<std::unique_ptr<MpiLaneUse>> uses_;  ///< by lane
  std::vector<Pages> memory_;                      ///< by lane
  std::vector<std::shared_ptr<void>> abandoned_;
};

}  // namespace aiacc
