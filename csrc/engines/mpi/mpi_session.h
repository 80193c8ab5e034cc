#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engines/cancellation.h"
#include "csrc/engines/mpi/mpi_communicator.h"
#include "csrc/engines/mpi/mpi_plugin.h"
#include "csrc/engines/mpi/mpi_progress.h"

namespace aiacc {

/// MPI in this process: initialised once, and what the engines of the process work with.
///
/// Threads: one at a time, except `join`, `enter` and `leave`, which any may call.
class MpiSession {
 public:
  /// Collective, blocks. `version` of the library, for messages; `network_lanes`: see
  /// MpiPlugin::initialize. Throws Error.
  MpiSession(const MpiPlugin& plugin, std::string version, int network_lanes, double timeout_s);
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  const std::string& version() const { return version_; }

  /// All ranks of the job.
  MpiCommunicator& world() { return *world_; }
  const MpiCommunicator& world() const { return *world_; }

  /// Every rank's payload, in rank order. Collective, blocks.
  std::vector<std::string> all_gather(const std::string& payload);

  /// A communicator of some ranks for one engine at a time: one that was left by all members, or a
  /// new one. `split_id` is a number that no other call has had since lanes of `world` were last
  /// acquired. Collective over `members`, blocks: up to the timeout or the cancellation, which it
  /// throws.
  MpiCommunicator& join(const std::vector<int>& members,
                        std::uint32_t split_id,
                        const Cancellation& cancellation);
  /// An engine begins to use a communicator.
  void enter() noexcept;
  /// The engine is gone; the communicator may serve another, unless it is `world`. With the last
  /// engine, returns when nobody but the callers of the session is in MPI.
  void leave(const MpiCommunicator& communicator) noexcept;

  /// Nobody but the callers of the session is in MPI from then on. Any thread. To be called before
  /// MPI ends and before `finish`.
  void stop_progress() noexcept;

  /// At the end of the process: finalises MPI if this session has initialised it and no rank may be
  /// missing. Waits for the other ranks, as MPI_Finalize does, but asleep, and not for a rank of
  /// this machine that has died.
  void finish() noexcept;

 private:
  /// A communicator of some ranks.
  struct Part {
    std::unique_ptr<MpiCommunicator> communicator;
    bool in_use = false;  ///< by an engine, or offered to a new one
  };
  /// Members and a number that the first of them has drawn.
  using PartKey = std::pair<std::vector<int>, std::uint32_t>;

  MpiHandle meet();
  void watch_neighbours();
  bool neighbour_has_ended() const;
  std::pair<std::uint32_t, bool> meet_members(const std::vector<int>& members,
                                              int tag,
                                              const Cancellation& cancellation);
  std::uint32_t reserve_parts(const std::vector<int>& members,
                              std::uint32_t* numbers,
                              std::size_t most);

  const MpiPlugin& plugin_;
  const std::string version_;
  const double timeout_s_;
  bool ours_ = false;
  std::unique_ptr<MpiCommunicator> world_;
  std::unique_ptr<MpiProgress> progress_;  ///< where there is more than one rank
  std::vector<int> neighbours_;  ///< descriptors of the processes of the ranks on this machine

  std::mutex mutex_;  ///< protects what follows
  std::map<PartKey, Part> parts_;
  std::uint32_t next_number_ = 0;
  int engines_ = 0;
  std::vector<std::shared_ptr<void>> abandoned_;
};

}  // namespace aiacc
