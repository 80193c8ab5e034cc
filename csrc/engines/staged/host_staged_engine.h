#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/device_engine.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/staged/host_staging_lane.h"

namespace aiacc {

/// A device engine on top of an engine for host memory: for hosts whose network needs many flows
/// rather than NCCL.
///
/// An all-reduce or a broadcast is cut into one part for each lane of that engine. All parts travel
/// at a time: through pinned memory, the lane, and back. Other operations use one lane. Operations
/// are queued, as DeviceEngine says: threads, one for each lane, do the host's part, and streams
/// wait for them. Those of one lane follow each other, in the order of issue; those of different
/// ones overlap. The threads are shared with all engines that are split from this one. A failure of
/// the network shows in `check`.
class HostStagedEngine : public DeviceEngine {
 public:
  /// `host` is an engine for host memory, in which this is rank `rank` of `size`. `own` gives
  /// device, streams and buffers, all of them shared with the engines that this one is composed
  /// with: one for GPUs that was split for this rank alone.
  HostStagedEngine(std::unique_ptr<Engine> host,
                   std::unique_ptr<DeviceEngine> own,
                   int rank,
                   int size);
  /// Waits for what is under way, then aborts it.
  ~HostStagedEngine() override;

  const char* name() const override { return host_->name(); }
  int lanes() const override { return own_->lanes(); }
  std::shared_ptr<Device> open(int ordinal) override { return own_->open(ordinal); }
  std::shared_ptr<Device> device(int ordinal) override { return own_->device(ordinal); }
  CudaStream stream(int lane) override { return own_->stream(lane); }
  CudaStream pack_stream(int lane) override { return own_->pack_stream(lane); }
  void* buffer(int lane, std::size_t bytes) override { return own_->buffer(lane, bytes); }
  std::string refusal(const DeviceReduction& reduction) const override {
    return own_->refusal(reduction);
  }
  bool quiesce(Clock::time_point deadline) noexcept override { return own_->quiesce(deadline); }
  void check() override;
  LaneWait issue_waits() const override { return own_->issue_waits(); }
  LaneWait waits(int lane) const override;
  void abort(const Status& status) noexcept override;

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
  using Threads = std::vector<std::unique_ptr<HostStagingLane>>;
  /// A part and its lane of the host's engine.
  struct Part {
    int lane = 0;
    HostPart part;
  };

  HostStagedEngine(std::unique_ptr<Engine> host,
                   std::unique_ptr<DeviceEngine> own,
                   int rank,
                   int size,
                   std::shared_ptr<Threads> threads);
  /// Queues the parts, each on a lane of its own, between what is on the stream of `lane` and what
  /// will be.
  void run(int lane, std::vector<Part> parts);
  /// The lane of the host's engine for operations that use one.
  int between_lane(int lane) const;
  /// Those that share an operation of so many bytes.
  std::vector<int> between_lanes(int lane, std::size_t bytes) const;

  const std::unique_ptr<Engine> host_;
  const std::unique_ptr<DeviceEngine> own_;
  const int rank_;
  const int size_;
  const std::shared_ptr<HostWork> work_;
  std::shared_ptr<Device> device_;  ///< null until the first operation; the issuing thread's
  const std::shared_ptr<Threads> threads_;  ///< by lane of the host's engine
  /// By lane of the host's engine: whose part is at work there, a lane of this engine, or kNobody.
  std::vector<std::atomic<int>> served_;
};

}  // namespace aiacc
