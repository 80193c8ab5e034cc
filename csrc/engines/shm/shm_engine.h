#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/control/shm/memory_sharing.h"
#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/shm/shm_channel.h"

namespace aiacc {

/// Who shares memory, and how.
struct ShmOptions {
  std::vector<int> ranks;      ///< of the job, ascending, all on one host; this one among them
  std::uint32_t split_id = 0;  ///< keeps this engine's connections apart (see TcpEngine::Members)
  std::size_t slot_bytes = 0;  ///< of a block; 0: chosen for one host (256 KiB)
};

/// CPU tensors of ranks on one host, through memory that all of them map: no connection remains.
///
/// Every lane, the express lane included, is a channel with memory of its own (ShmChannel). The
/// first failure on a lane is latched: all lanes throw it from then on. Other ranks do not learn of
/// it from here: the control plane tells them, and their engines are aborted.
class ShmEngine : public Engine {
 public:
  /// Collective over `options.ranks`, blocks. Of `context`, the rank is the connector's. Throws
  /// Error(kEngine), on every one of them with the reason of one, if memory cannot be shared;
  /// nothing is left then. `interrupt` (may be null) ends the wait.
  ShmEngine(const EngineContext& context,
            ShmOptions options,
            const Cancellation* interrupt = nullptr);

  /// All ranks of the context. Throws Error(kInvalidArgument) if they are on several hosts.
  explicit ShmEngine(const EngineContext& context);

  const char* name() const override { return "shm"; }
  int lanes() const override { return context_.lanes; }
  int size() const { return static_cast<int>(options_.ranks.size()); }
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override;
  SharedSlots slots(int lane) const override;
  void all_reduce_moved(int lane,
                        std::size_t count,
                        const Reduction& reduction,
                        BlockMover& mover) override;

  /// all_reduce whose pieces are combined with other hosts' through `across`. `owners` ranks of
  /// this host own a piece (<= size(), equal on all hosts): those with the lowest numbers; the
  /// others only give and take. `slot_bytes` must be equal on all hosts, too.
  void all_reduce_across(int lane,
                         const void* send,
                         void* recv,
                         std::size_t count,
                         const Reduction& reduction,
                         CrossHostReduce& across,
                         int owners);

  /// Copies `bytes_of[r]` bytes of every rank r from its `send` to `recv[r]` on all ranks: an
  /// all_gather whose parts need not lie in a row.
  void exchange(int lane,
                const void* send,
                const PerRank& bytes_of,
                const std::vector<void*>& recv);

  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override;
  void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) override;
  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction) override;
  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes) override;
  std::unique_ptr<Engine> split(const std::vector<int>& members, std::uint32_t split_id) override;
  LaneWait waits(int lane) const override;
  void abort(const Status& status) noexcept override;

 private:
  template <class Operation>
  void run(int lane, Operation operation);
  std::size_t slot_bytes(int lane) const;

  const EngineContext context_;
  const ShmOptions options_;
  const int rank_;  ///< among options_.ranks
  Cancellation cancellation_;
  HostMemory memory_;
  std::vector<std::unique_ptr<ShmChannel>> channels_;  ///< by lane, the express lane's last
};

}  // namespace aiacc
