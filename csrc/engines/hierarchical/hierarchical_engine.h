#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/hierarchical/host_topology.h"
#include "csrc/engines/hierarchical/split_ids.h"
#include "csrc/engines/shm/shm_engine.h"

namespace aiacc {

/// What a HierarchicalEngine is made of. All are collective over the ranks that they are given,
/// ascending and of the job, and `interrupt` ends their waits. They throw what constructors of
/// engines throw.
struct HierarchyLevels {
  const char* name;         ///< of the engine
  const char* flat_name;    ///< of what it is without shared memory
  std::size_t piece_bytes;  ///< what a rank combines with other hosts at a time
  /// Shared memory for ranks of one host.
  std::function<std::unique_ptr<ShmEngine>(
      const EngineContext& job, const ShmOptions& options, const Cancellation& interrupt)>
      inside;
  /// An engine for any ranks. `split_id` is that of the job for all ranks of the job, else one that
  /// is used once.
  std::function<std::unique_ptr<Engine>(const EngineContext& job,
                                        const std::vector<int>& ranks,
                                        std::uint32_t split_id,
                                        const Cancellation& interrupt)>
      across;
};

/// Memory that the ranks of a host share, and another engine between the hosts, as one engine.
///
/// Ranks of one host use the memory alone, and have no connections. Of several hosts, an all-reduce
/// goes block by block through the memory: each rank of a *column* (HostTopology) reduces its piece
/// of a block for its host, combines it with those of the other hosts, and shows the result, while
/// the pieces of the blocks before and after are on their way. So a host's network carries every
/// byte as often as with one rank per host, over as many flows as there are columns and lanes.
/// Other ranks of the host only give and take. The other operations use the same two levels, except
/// where the *flat* engine, among all ranks, does better: all-to-alls, the express lane, and what
/// needs as many ranks on every host where that is not so.
///
/// If the ranks of one host cannot share memory, everything goes flat, on all ranks, under the flat
/// engine's name, and the log has the reason. So it does, under its own, if no host has two ranks.
/// A failure on any level is latched for all of them.
class HierarchicalEngine : public Engine {
 public:
  /// Among all ranks of the context. Collective, blocks. Throws Error(kInvalidArgument) if
  /// `context.host_of` does not name the host of every rank.
  HierarchicalEngine(const EngineContext& context, HierarchyLevels levels);

  const char* name() const override { return shares_ ? levels_.name : levels_.flat_name; }
  int lanes() const override { return job_.lanes; }
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override;
  /// There are none on several hosts: their blocks are as large as a unit, and would not overlap.
  SharedSlots slots(int lane) const override;
  void all_reduce_moved(int lane,
                        std::size_t count,
                        const Reduction& reduction,
                        BlockMover& mover) override;
  bool all_reduce_coded(int lane, const CodedReduce& reduce, CodedMemory& memory) override;
  int exchanging(int ranks) const override;
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
  double send_busy_s(int lane) const override;
  LaneWait waits(int lane) const override;
  void abort(const Status& status) noexcept override;

 private:
  /// What one lane needs while it works, kept for its memory.
  struct Scratch {
    std::vector<std::byte> packed;
    std::vector<std::byte> column;
    PerRank shares;
  };

  /// Among some ranks of the job. `shares`: whether to try to share memory. `interrupt`: null, or
  /// what ends the wait.
  HierarchicalEngine(const EngineContext& job,
                     HierarchyLevels levels,
                     std::vector<int> ranks,
                     const SplitIds& split_ids,
                     bool shares,
                     const Cancellation* interrupt);

  void connect(const Cancellation& interrupt);
  std::size_t slot_bytes() const;
  /// Makes `inside_`. "" or why the ranks of this host cannot share memory.
  std::string share_inside(const Cancellation& interrupt);
  /// Blocks until all ranks have said so; whether all share memory.
  bool all_share(const std::string& problem, const Cancellation& interrupt);

  template <class Operation>
  void run(int lane, Operation operation);
  /// The engine that alone serves a lane; null if two levels do.
  Engine* alone(int lane) const;
  int host() const { return layout_.host(rank_); }
  int local() const { return layout_.local(rank_); }
  Scratch& scratch(int lane) { return scratch_[static_cast<std::size_t>(lane)]; }
  /// What serves all-to-alls.
  Engine* any() const { return flat_ != nullptr ? flat_.get() : inside_.get(); }

  // On two levels: two_levels.cc.
  void reduce_all(
      int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction);
  void reduce_coded(int lane, const CodedReduce& reduce, CodedMemory& memory);
  void spread(int lane, std::byte* buffer, std::size_t bytes, int root);
  /// Cuts `bytes` into one share per column, for the ranks of this host; where this rank's begins.
  std::size_t cut(std::size_t bytes, PerRank& shares) const;
  /// Elements of each rank, of so many bytes, that a block of a gather or scatter has at most.
  std::size_t step(std::size_t element) const;
  void gather(int lane, const std::byte* send, std::byte* recv, const PerRank& bytes_of);
  void scatter(int lane,
               const std::byte* send,
               std::byte* recv,
               const PerRank& counts,
               const Reduction& reduction);

  const EngineContext job_;
  const HierarchyLevels levels_;
  const std::vector<int> ranks_;  ///< of the job
  const int rank_;                ///< of this engine
  const HostTopology layout_;
  const SplitIds split_ids_;
  bool shares_;
  Cancellation cancellation_;
  std::unique_ptr<Engine> flat_;       ///< null if all ranks are on one host and share memory
  std::unique_ptr<ShmEngine> inside_;  ///< null if everything goes flat
  std::unique_ptr<Engine> between_;    ///< null without two levels, or if this rank has no column
  std::vector<Engine*> parts_;         ///< those of the three that there are
  std::vector<Scratch> scratch_;       ///< by numbered lane
};

/// Shared memory inside hosts; between them tcp, or MPI.
HierarchyLevels tcp_levels();
HierarchyLevels mpi_levels();

/// The engine `hierarchical`: shared memory inside hosts, tcp between them.
std::unique_ptr<Engine> create_hierarchical_engine(const EngineContext& context);

/// The engine `hierarchical-mpi`: shared memory inside hosts, MPI between them.
std::unique_ptr<Engine> create_hierarchical_mpi_engine(const EngineContext& context);

}  // namespace aiacc
