#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/device_engine.h"
#include "csrc/engines/hierarchical/hierarchical_engine.h"

namespace aiacc {

/// For tensors on GPUs. Its parts are engines that share their streams: NCCL inside the hosts, and
/// NCCL or lanes of the CPU between them.
///
/// The all-reduces of a group go step by step: no lane's first step is behind another lane's wait
/// for the other hosts, as NCCL's order of launches would have it otherwise. Every step of a unit
/// is on the stream of its lane. All ranks of a host issue the same steps in the same order, and so
/// do all ranks of a column: the order of issue that NCCL wants. The algorithm that a reduction
/// wishes for is left to NCCL: one step differs from the other.
class HierarchicalDeviceEngine : public Hierarchical<DeviceEngine> {
 public:
  using Hierarchical::Hierarchical;

  std::shared_ptr<Device> open(int ordinal) override { return first().open(ordinal); }
  std::shared_ptr<Device> device(int ordinal) override;
  CudaStream stream(int lane) override { return first().stream(lane); }
  CudaStream pack_stream(int lane) override { return first().pack_stream(lane); }
  void* buffer(int lane, std::size_t bytes) override { return first().buffer(lane, bytes); }
  std::string refusal(const DeviceReduction& reduction) const override;
  bool quiesce(Clock::time_point deadline) noexcept override { return first().quiesce(deadline); }
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
  std::unique_ptr<DeviceEngine> split(const std::vector<int>& members,
                                      std::uint32_t split_id) override;

 private:
  HierarchicalDeviceEngine(HierarchicalDeviceEngine& whole,
                           const std::vector<int>& members,
                           std::uint32_t split_id)
      : Hierarchical(whole, members, split_id) {}
  DeviceEngine& first() const { return *parts_.front(); }

  const std::vector<DeviceEngine*> parts_ = parts();
  bool grouping_ = false;         ///< the issuing thread's
  std::vector<AllReduce> group_;  ///< the same
};

/// `nccl` inside the hosts; between them, if there are several, the same, or with
/// `staged_between_hosts` the lanes of an engine `tcp`. Takes NCCL's engine among all ranks.
/// Collective, blocks. Throws Error(kInvalidArgument) if `context.host_of` does not name the host
/// of every rank.
std::unique_ptr<DeviceEngine> create_hierarchical_device_engine(std::unique_ptr<DeviceEngine> nccl,
                                                                EngineContext context,
                                                                bool staged_between_hosts);

}  // namespace aiacc
