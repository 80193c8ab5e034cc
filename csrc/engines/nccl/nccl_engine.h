#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "csrc/engines/cancellation.h"
#include "csrc/engines/device_engine.h"
#include "csrc/engines/nccl/nccl_api.h"
#include "csrc/engines/nccl/nccl_device.h"

namespace aiacc {

/// Tensors on a GPU of every rank over NCCL: one communicator with connections of its own, one
/// stream of high priority and a ring of registered buffers for each lane.
///
/// It queues: see DeviceEngine. Calls of NCCL do not block; where one is not over at once, the
/// issuing thread asks again until it is, the engine is aborted, or `connect_timeout_s` have
/// passed. The order of issue, equal on all ranks, is what keeps communicators that share a GPU
/// from waiting for each other crosswise; NCCL is told to run them in it ("implicit launch order").
class NcclEngine : public DeviceEngine {
 public:
  /// Concerns this rank alone. The tables outlive it. Throws Error(kUnsupported) if so many lanes
  /// would not be safe with this NCCL, or in this process.
  NcclEngine(const CudaDriver& cuda, const NcclApi& nccl, const EngineContext& context);
  /// Waits for what is queued, then ends the communicators; what is not over by a deadline is
  /// aborted.
  ~NcclEngine() override;

  const char* name() const override { return "nccl"; }
  int lanes() const override { return devices_->lanes(); }
  std::shared_ptr<Device> open(int ordinal) override { return devices_->on(ordinal)->device(); }
  std::shared_ptr<Device> device(int ordinal) override;
  CudaStream stream(int lane) override { return device_->stream(lane); }
  CudaStream pack_stream(int lane) override { return device_->pack_stream(lane); }
  void* buffer(int lane, std::size_t bytes) override;
  void begin_group() override;
  void end_group() override;
  std::string refusal(const DeviceReduction& reduction) const override;
  bool quiesce(Clock::time_point deadline) noexcept override { return devices_->quiesce(deadline); }
  void check() override;
  LaneWait issue_waits() const override { return mark_.get(); }
  void abort(const Status& status) noexcept override;

  /// The wish for an algorithm counts from NCCL 2.31 on.
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

 private:
  struct Lane {
    NcclComm comm = nullptr;
    /// By the memory of a buffer; null where this library or network cannot.
    std::map<const void*, void*> registrations;
  };

  NcclEngine(std::shared_ptr<NcclDevices> devices,
             EngineContext context,
             std::vector<int> members,
             std::uint32_t split_id);
  void connect();
  void join(std::size_t lane, const NcclUniqueId& id);
  std::vector<NcclUniqueId> agree_on_ids();
  void settle(NcclComm comm, NcclResult result, const char* call);
  void register_buffer(int lane, const void* memory);
  Lane& lane_at(int lane) { return comms_[static_cast<std::size_t>(lane) % comms_.size()]; }
  template <class Call>
  void issue(int lane, const char* name, std::initializer_list<const void*> memory, Call call);
  template <class Call>
  void issue_in_group(int lane, const char* name, Call call);
  template <class Call>
  void issue_group(int lane,
                   const char* name,
                   std::initializer_list<const void*> memory,
                   Call call);
  bool finish() noexcept;

  const std::shared_ptr<NcclDevices> devices_;
  std::shared_ptr<NcclDevice> device_;  ///< the one of all operations; null until `device`
  const NcclApi& nccl_;
  const EngineContext context_;     ///< rank and size: those of this engine
  const std::vector<int> members_;  ///< their ranks in the job
  const std::uint32_t split_id_;
  Cancellation cancellation_;
  WaitMark mark_;     ///< the issuing thread's, while it waits for the ranks to come
  std::mutex mutex_;  ///< one thread at a time is in NCCL; guards what follows
  std::vector<Lane> comms_;
  std::unique_lock<std::mutex>
      open_group_;                 ///< holds the mutex while a group is open; the issuing thread's
  std::vector<NcclComm> grouped_;  ///< the communicators of that group
};

/// Whether there are a driver, a GPU, kernels for it and NCCL.
Viability nccl_viability();
/// What launch_order_problem says about this process; "" where there is no NCCL.
std::string nccl_lanes_problem(int lanes, bool in_use);
/// With the libraries of this process.
std::unique_ptr<DeviceEngine> create_nccl_engine(const EngineContext& context);

}  // namespace aiacc
