#pragma once

#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/device_engine.h"
#include "csrc/engines/hierarchical/hierarchical_engine.h"

namespace aiacc {

/// HierarchicalEngine for tensors on GPUs, whose parts are engines that share their streams:
/// NCCL inside the hosts, and NCCL or lanes of the CPU between them.
///
/// The all-reduces of a group go step by step: no lane's first step is behind another lane's wait for the
/// other hosts, as NCCL's order of launches would have it otherwise.
/// Every step of a unit is on the stream of its lane. All ranks of a host issue the same steps in the
/// same order, and so do all ranks of a column: the order of issue that NCCL wants. The algorithm that
/// a reduction wishes for is left to NCCL: one step differs from the other.
class HierarchicalDeviceEngine : public DeviceEngine {
 public:
  explicit HierarchicalDeviceEngine(std::unique_ptr<HierarchicalEngine> levels);

  const char* name() const override { return "hierarchical"; }
  int lanes() const override { return levels_->lanes(); }
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
  void abort(const Status& status) noexcept override { levels_->abort(status); }

  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override;
  void all_reduce_on_wire(int lane,
                          const void* send,
                          void* recv,
                          std::size_t count,
                          const DeviceReduction& reduction) override;
  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override {
    levels_->broadcast(lane, buffer, bytes, root);
  }
  void all_gather(int lane,
                  const void* send,
                  void* recv,
                  const std::vector<std::size_t>& bytes_of) override {
    levels_->all_gather(lane, send, recv, bytes_of);
  }
  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const std::vector<std::size_t>& counts,
                      const Reduction& reduction) override {
    levels_->reduce_scatter(lane, send, recv, counts, reduction);
  }
  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const std::vector<std::size_t>& send_bytes,
                  const std::vector<std::size_t>& recv_bytes) override {
    levels_->all_to_all(lane, send, recv, send_bytes, recv_bytes);
  }
  std::unique_ptr<Engine> split(const std::vector<int>& members, std::uint32_t group) override;

 private:
  DeviceEngine& first() const { return *parts_.front(); }

  const std::unique_ptr<HierarchicalEngine> levels_;
  const std::vector<DeviceEngine*> parts_;
  bool grouping_ = false;                             ///< the issuing thread's
  std::vector<HierarchicalEngine::AllReduce> group_;  ///< the same
};

/// `nccl` inside the hosts; between them, if there are several, the same, or with `host_lanes` the lanes
/// of an engine `tcp`.
/// Takes NCCL's engine among all ranks. Collective, blocks. Throws Error(kInvalidArgument) if
/// `context.host_of` does not name the host of every rank.
std::unique_ptr<Engine> create_hierarchical_device_engine(std::unique_ptr<Engine> nccl,
                                                          EngineContext context,
                                                          bool host_lanes);

}  // namespace aiacc
