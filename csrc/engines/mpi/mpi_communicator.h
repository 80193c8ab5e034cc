#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/mpi/mpi_plugin.h"
#include "csrc/engines/mpi/mpi_request.h"
#include "csrc/engines/mpi/pages.h"

namespace aiacc {

/// Where the ranks of a communicator are. A node is a set of ranks that can share memory.
struct MpiTopology {
  int rank = 0;
  int size = 1;
  int node_rank = 0;  ///< within the node, the ranks that share memory in all-reduces
  int node_size = 1;
  /// Number of nodes. If nodes have different numbers of ranks, every rank is a node.
  int nodes = 1;
};

/// What one lane of an engine works with. Lives in the communicator; engines borrow it.
struct MpiLane {
  std::vector<void*> segments;  ///< of a ShmChannel, one per rank of the node
  std::size_t slot_bytes = 0;
  /// Communicators with the ranks of the same node_rank, and with all ranks; unused with one node.
  MpiHandle cross = 0;
  MpiHandle world = 0;
  std::byte* staging = nullptr;  ///< what MPI reads and writes on `world`
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
/// Communicators and shared memory are made collectively, so they are kept for the next engine
/// when one is destroyed, which happens at a time of each rank's own choice.
/// Threads: one at a time, except `spoil`. Blocking: where said, up to the timeout or until the
/// caller's `interrupt` throws.
class MpiCommunicator {
 public:
  /// `handle` is the communicator's own from now on. Collective, blocks.
  MpiCommunicator(const MpiPlugin& plugin,
                  MpiHandle handle,
                  double timeout_s,
                  const WaitCheck& interrupt = {});
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  const MpiPlugin& plugin() const { return plugin_; }
  const MpiTopology& topology() const { return topology_; }
  MpiHandle handle() const { return setup_; }

  /// `count` lanes in their initial state. Collective, blocks. Throws Error(kEngine) on every rank
  /// if a host has no memory for them; the communicator is as before then.
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
  using MakeCommunicator = std::function<int(MpiHandle*)>;

  void find_topology(const WaitCheck& interrupt);
  /// Collective: what `make` makes; `name` is MPI's for it.
  MpiHandle communicator_from(MakeCommunicator make, const char* name, const WaitCheck& interrupt);
  /// Drops lanes on which the ranks have made different numbers of calls.
  void drop_lanes(const std::vector<int>& state);
  /// Collective: more lanes, `count` in all.
  void add_lanes(std::size_t count, const WaitCheck& interrupt);
  /// Collective: memory for new lanes, on every rank or, with an error, on none.
  std::vector<std::vector<Pages>> make_memory(std::vector<MpiLane>& lanes,
                                              const WaitCheck& interrupt);
  /// Collective: a name for the files of this rank's node, equal on its ranks.
  std::string name_of_node(const WaitCheck& interrupt);

  const MpiPlugin& plugin_;
  const double timeout_s_;
  bool failed_ = false;  ///< the ranks no longer agree about what comes next on `setup_`
  int generation_ = 0;
  std::atomic<bool> spoilt_{false};
  MpiTopology topology_;
  MpiHandle setup_ = 0;  ///< all ranks of the communicator; not used by lanes
  MpiHandle node_ = 0;
  MpiHandle cross_ = 0;
  std::vector<MpiLane> lanes_;
  std::vector<std::unique_ptr<MpiLaneUse>> uses_;  ///< by lane
  std::vector<std::vector<Pages>> memory_;         ///< by lane: segments by node_rank, then staging
  std::vector<std::shared_ptr<void>> abandoned_;
};

}  // namespace aiacc
