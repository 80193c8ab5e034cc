#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "csrc/base/spin.h"
#include "csrc/base/wait_mark.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine_context.h"
#include "csrc/engines/mpi/mpi_communicator.h"
#include "csrc/engines/shm/shm_channel.h"

namespace aiacc {

/// Collectives of one lane: the channel of the node, and MPI for what leaves it. MPI sees only
/// memory of the communicator. One thread at a time, except `wake`; contracts as in Engine.
class MpiChannel : public CrossHostReduce {
 public:
  MpiChannel(MpiCommunicator& communicator,
             const MpiLane& resources,
             double spin_us,
             const Cancellation& cancellation);
  ~MpiChannel() override;

  void wake() noexcept { channel_.wake(); }
  /// As Engine::waits. How far MPI has come with a request cannot be seen: a wait for another node
  /// begins with the request, of a few MiB at most.
  LaneWait waits() const { return {std::max(channel_.waits().seconds, mark_.get().seconds), -1}; }

  void all_reduce(const void* send, void* recv, std::size_t count, const Reduction& reduction);
  void broadcast(void* buffer, std::size_t bytes, int root);
  void all_gather(const void* send, void* recv, const PerRank& bytes_of);
  void reduce_scatter(const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction);
  void all_to_all(const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes);

  // CrossHostReduce, called by the channel of the node.
  void start(int ticket, void* data, std::size_t count, DataType dtype, ReduceOp op) override;
  void finish(int ticket) override;

 private:
  bool one_node() const { return communicator_.topology().nodes == 1; }
  MpiHandle& begin(int ticket);
  void gather_step(const std::byte* send,
                   std::byte* recv,
                   const PerRank& bytes_of,
                   const PerRank& starts,
                   std::size_t from,
                   std::size_t step);
  std::size_t maximum_of_all(const std::vector<std::size_t>& values);

  MpiCommunicator& communicator_;
  const MpiPlugin& plugin_;
  const MpiLane resources_;
  Spin spin_;
  const Cancellation& cancellation_;
  ShmChannel channel_;
  std::array<MpiHandle, ShmChannel::kSlots> requests_{};
  std::array<bool, ShmChannel::kSlots> outstanding_{};
  WaitMark mark_;  ///< of waits for other nodes
  std::vector<int> parts_;
  std::vector<int> received_parts_;
  std::vector<int> offsets_;
};

}  // namespace aiacc
