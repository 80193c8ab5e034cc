#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/cancellation.h"
#include "csrc/engines/device_engine.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/engine_context.h"
#include "csrc/engines/hierarchical/host_topology.h"
#include "csrc/engines/hierarchical/split_ids.h"

namespace aiacc {

/// For tensors on GPUs. Its parts are engines that share their streams: NCCL inside the hosts, and
/// NCCL or lanes of the CPU between them.
///
/// An all-reduce is a reduce-scatter inside the host, an all-reduce of each share between the
/// hosts, and an all-gather inside: a host's network carries every byte as often as with one rank
/// per host. Hosts may have different numbers of ranks: those beyond the columns of HostTopology
/// own no share. A broadcast goes through the root's host, between hosts in shares, and is gathered
/// inside.
///
/// The flat engine, among all ranks, does the rest:
///  * all-gather, reduce-scatter and all-to-all: their bytes cross between hosts as often either
///    way, and would be carried inside the hosts besides;
///  * the express lane: small buffers cost latency, and three steps cost more than one;
///  * everything, if there is only one host.
///
/// The all-reduces of a group go step by step: no lane's first step is behind another lane's wait
/// for the other hosts, as NCCL's order of launches would have it otherwise. Every step of a unit
/// is on the stream of its lane. All ranks of a host issue the same steps in the same order, and so
/// do all ranks of a column: the order of issue that NCCL wants. The algorithm that a reduction
/// wishes for is left to NCCL: one step differs from the other.
///
/// A failure on any level is latched for all of them.
class HierarchicalDeviceEngine : public DeviceEngine {
 public:
  /// Splits `flat`, an engine of all ranks; `host_of` is the host of each of its ranks. `near`:
  /// what is split for the inside of the hosts, also an engine of all ranks; null: `flat`. Numbers
  /// that are given to `split` are greater than `split_id`, that of `flat`. Collective, blocks,
  /// throws what `split` throws.
  HierarchicalDeviceEngine(std::unique_ptr<DeviceEngine> flat,
                           const std::vector<int>& host_of,
                           int rank,
                           std::unique_ptr<DeviceEngine> near = nullptr,
                           std::uint32_t split_id = 0);

  const char* name() const override { return "hierarchical"; }
  int lanes() const override { return flat_->lanes(); }
  std::shared_ptr<Device> open(int ordinal) override { return flat_->open(ordinal); }
  std::shared_ptr<Device> device(int ordinal) override;
  CudaStream stream(int lane) override { return flat_->stream(lane); }
  CudaStream pack_stream(int lane) override { return flat_->pack_stream(lane); }
  void* buffer(int lane, std::size_t bytes) override { return flat_->buffer(lane, bytes); }
  std::string refusal(const DeviceReduction& reduction) const override;
  bool quiesce(Clock::time_point deadline) noexcept override { return flat_->quiesce(deadline); }
  void begin_group() override;
  void end_group() override;
  void check() override;
  LaneWait issue_waits() const override;
  LaneWait waits(int lane) const override;
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const DeviceReduction& reduction) override;
  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override;
  void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) override;
  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const PerRank& counts,
                      const DeviceReduction& reduction) override;
  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes) override;
  std::unique_ptr<DeviceEngine> split(const std::vector<int>& members,
                                      std::uint32_t split_id) override;
  void abort(const Status& status) noexcept override;

 private:
  /// An engine among `members` of `source`, which connects them; the flat one if that is null.
  struct Parts {
    DeviceEngine* source;
    std::unique_ptr<DeviceEngine> flat;  ///< among all members
    std::unique_ptr<DeviceEngine> near;
    std::vector<int> members;
    std::vector<int> host_of;
    int rank;
    SplitIds split_ids;
  };
  /// An all-reduce as it goes, step by step.
  struct AllReduce {
    int lane = 0;
    const void* send = nullptr;
    void* recv = nullptr;
    std::size_t count = 0;
    DeviceReduction reduction;
  };
  static constexpr int kSteps = 3;

  explicit HierarchicalDeviceEngine(Parts parts);

  template <class Operation>
  void run(int lane, Operation operation);
  bool is_flat(int lane) const { return lane == express_lane() || layout_.hosts() == 1; }
  int host() const { return layout_.host(rank_); }
  int local() const { return layout_.local(rank_); }
  /// Cuts `count` into one share per column, in `shares_`; where this rank's begins.
  std::size_t cut(std::size_t count);
  /// The engine that performs this step; null if this rank takes no part in it.
  DeviceEngine* server(int step, const AllReduce& call) const;
  /// Performs one step; all of them are the all-reduce. Calls on other lanes may come in between.
  void do_step(int step, const AllReduce& call);

  const std::vector<int> host_of_;
  const HostTopology layout_;
  const int rank_;
  const SplitIds split_ids_;
  Cancellation cancellation_;
  std::unique_ptr<DeviceEngine> flat_;
  std::unique_ptr<DeviceEngine> near_;     ///< null if the flat one serves inside the hosts, too
  std::unique_ptr<DeviceEngine> inside_;   ///< null if there is one host
  std::unique_ptr<DeviceEngine> between_;  ///< the same, or if this rank has no column
  std::vector<DeviceEngine*> parts_;       ///< those of the above that there are
  PerRank shares_;                         ///< of the members of the host, while a call uses it
  bool grouping_ = false;                  ///< the issuing thread's
  std::vector<AllReduce> group_;           ///< the same
};

/// Makes an engine for host memory among all ranks of a job. Collective, blocks.
using HostEngineFactory = std::function<std::unique_ptr<Engine>(const EngineContext& job)>;

/// `nccl` inside the hosts; between them, if there are several, the lanes of the engine that
/// `between` makes, or without that `nccl` as well. Takes NCCL's engine among all ranks.
/// Collective, blocks. Throws Error(kInvalidArgument) if `context.host_of` does not name the host
/// of every rank.
std::unique_ptr<DeviceEngine> create_hierarchical_device_engine(std::unique_ptr<DeviceEngine> nccl,
                                                                EngineContext context,
                                                                const HostEngineFactory& between);

}  // namespace aiacc
