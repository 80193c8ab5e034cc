#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "csrc/base/dtype.h"
#include "csrc/base/spin.h"
#include "csrc/base/wait_mark.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/mpi/mpi_communicator.h"

namespace aiacc {

/// Collectives of one lane. MPI sees only memory of the communicator, through which buffers travel
/// piece by piece. One thread at a time; contracts as in Engine.
class MpiChannel {
 public:
  MpiChannel(MpiCommunicator& communicator,
             const MpiLane& lane,
             double spin_us,
             const Cancellation& cancellation);
  ~MpiChannel();
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  /// As Engine::waits. How far MPI has come with a request cannot be seen: a wait begins with the
  /// request, of a few MiB at most. Any thread.
  LaneWait waits() const { return mark_.get(); }

  void all_reduce(const void* send, void* recv, std::size_t count, const Reduction& reduction);
  void start_all_reduce(int ticket, void* data, std::size_t count, const Reduction& reduction);
  void finish_all_reduce(int ticket);
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

 private:
  /// An all-reduce that MPI has been given, in the ticket's part of the staging memory.
  struct Piece {
    void* result = nullptr;
    std::size_t count = 0;
    Reduction reduction;
    bool under_way = false;
    MpiHandle request = 0;
  };

  /// Bytes of a ticket's part.
  std::size_t piece_bytes() const;
  std::byte* staged(std::size_t ticket) const { return lane_.staging + ticket * piece_bytes(); }
  void start_piece(std::size_t ticket,
                   const void* from,
                   void* result,
                   std::size_t count,
                   const Reduction& reduction);
  void finish_piece(std::size_t ticket);
  void wait(MpiHandle& request);
  /// The request of an operation that has the lane for itself.
  MpiHandle& begin();
  void end();
  void gather_step(const std::byte* send,
                   std::byte* recv,
                   const PerRank& bytes_of,
                   const PerRank& starts,
                   std::size_t from,
                   std::size_t step);
  std::size_t maximum_of_all(const std::vector<std::size_t>& values);

  MpiCommunicator& communicator_;
  const MpiPlugin& plugin_;
  const MpiLane lane_;
  Spin spin_;
  const Cancellation& cancellation_;
  std::array<Piece, Engine::kTickets> pieces_{};
  WaitMark mark_;
  std::vector<int> parts_;
  std::vector<int> received_parts_;
  std::vector<int> offsets_;
};

}  // namespace aiacc
