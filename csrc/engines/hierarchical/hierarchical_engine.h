#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/engines/cancellation.h"
#include "csrc/engines/device_engine.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/hierarchical/host_topology.h"

namespace aiacc {

/// Only the part that is at work waits.
template <class Engines, class Wait>
LaneWait longest_of(const Engines& parts, Wait wait_of) {
  LaneWait longest;
  for (const auto* part : parts) {
    const LaneWait wait = wait_of(*part);
    if (wait.seconds > longest.seconds) {
      longest = wait;
    }
  }
  return longest;
}

/// Two engines of one kind, one inside each host and one between hosts, as one of that kind: Engine
/// or DeviceEngine.
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
/// A failure on any level is latched for all of them.
template <class Kind>
class Hierarchical : public Kind {
 public:
  using Arithmetic = typename Kind::Arithmetic;

  /// Splits `flat`, an engine of all ranks; `host_of` is the host of each of its ranks. `near`:
  /// what is split for the inside of the hosts, also an engine of all ranks; null: `flat`. Numbers
  /// that are given to `split` are greater than `split_id`, that of `flat`. Collective, blocks,
  /// throws what `split` throws.
  Hierarchical(std::unique_ptr<Kind> flat,
               const std::vector<int>& host_of,
               int rank,
               std::unique_ptr<Kind> near = nullptr,
               std::uint32_t split_id = 0);

  const char* name() const override { return "hierarchical"; }
  int lanes() const override { return flat_->lanes(); }
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Arithmetic& reduction) override;
  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override;
  void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) override;
  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Arithmetic& reduction) override;
  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes) override;
  void abort(const Status& status) noexcept override;

 protected:
  /// What `whole.split(members, split_id)` gives.
  Hierarchical(Hierarchical& whole, const std::vector<int>& members, std::uint32_t split_id)
      : Hierarchical(parts_of(whole, members, split_id)) {}

  /// An all-reduce as it goes, step by step.
  struct AllReduce {
    int lane = 0;
    const void* send = nullptr;
    void* recv = nullptr;
    std::size_t count = 0;
    Arithmetic reduction;
  };
  static constexpr int kSteps = 3;
  /// The engine that performs this step; null if this rank takes no part in it.
  Kind* server(int step, const AllReduce& call) const;
  /// Performs one step; `all_reduce` performs all. Calls on other lanes may come between two steps.
  void do_step(int step, const AllReduce& call);

  /// All engines that this consists of, the flat one first.
  std::vector<Kind*> parts() const;
  /// The one that carries bytes to other hosts; null if this rank carries none.
  const Kind* outward() const;

 private:
  /// What one lane needs while it works, kept for its memory.
  struct Scratch {
    PerRank shares;           ///< of the members of the host
    std::vector<char> share;  ///< this rank's, while its place in the result is in use
  };

  /// Split ids that one engine of a job uses: for itself, every host, every column.
  struct SplitIds {
    std::uint32_t first;
    std::uint32_t count;  ///< enough for all ranks of the job
    std::uint32_t base;   ///< the first one of the engine of all ranks
  };

  /// An engine among `members` of `source`, which connects them; the flat one if that is null.
  struct Parts {
    Kind* source;
    std::unique_ptr<Kind> flat;  ///< among all members
    std::unique_ptr<Kind> near;
    std::vector<int> members;
    std::vector<int> host_of;
    int rank;
    SplitIds split_ids;
  };
  static Parts parts_of(Hierarchical& whole,
                        const std::vector<int>& members,
                        std::uint32_t split_id);
  explicit Hierarchical(Parts parts);

  template <class Operation>
  void run(int lane, Operation operation);
  bool is_flat(int lane) const { return lane == this->express_lane() || layout_.hosts() == 1; }
  int host() const { return layout_.host(rank_); }
  int local() const { return layout_.local(rank_); }
  /// This rank's share of a call, on its way between the hosts.
  struct Share {
    char* memory = nullptr;
    std::size_t elements = 0;
  };
  Share share_of(const AllReduce& call, Scratch& scratch) const;
  /// Cuts `count` into one share per column, in `scratch.shares`; where this rank's begins.
  std::size_t cut(std::size_t count, Scratch& scratch) const;

  const std::vector<int> host_of_;
  const HostTopology layout_;
  const int rank_;
  const SplitIds split_ids_;
  Cancellation cancellation_;
  std::unique_ptr<Kind> flat_;
  std::unique_ptr<Kind> near_;     ///< null if the flat one serves inside the hosts, too
  std::unique_ptr<Kind> inside_;   ///< null if there is one host
  std::unique_ptr<Kind> between_;  ///< null if there is one host, or if this rank has no column
  std::vector<Scratch> scratch_;   ///< by lane
};

/// For host memory.
class HierarchicalEngine : public Hierarchical<Engine> {
 public:
  using Hierarchical::Hierarchical;

  std::unique_ptr<Engine> split(const std::vector<int>& members, std::uint32_t split_id) override {
    return std::unique_ptr<Engine>(new HierarchicalEngine(*this, members, split_id));
  }
  double send_busy_s(int lane) const override;
  LaneWait waits(int lane) const override;

 private:
  HierarchicalEngine(HierarchicalEngine& whole,
                     const std::vector<int>& members,
                     std::uint32_t split_id)
      : Hierarchical(whole, members, split_id) {}
};

/// Throws Error(kInvalidArgument) if `context.host_of` does not name the host of every rank.
void check_hosts(const EngineContext& context);

/// The engine `hierarchical`: tcp on both levels. Throws what check_hosts does.
std::unique_ptr<Engine> create_hierarchical_engine(const EngineContext& context);

}  // namespace aiacc
