#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/engines/device_engine.h"

namespace aiacc {

/// An engine for GPUs that leaves out every operation: as if its rank had planned otherwise.
class DeviceDeserter : public DeviceEngine {
 public:
  explicit DeviceDeserter(std::unique_ptr<DeviceEngine> engine) : engine_(std::move(engine)) {}

  const char* name() const override { return engine_->name(); }
  int lanes() const override { return engine_->lanes(); }
  void all_reduce(int, const void*, void*, std::size_t, const DeviceReduction&) override {}
  void broadcast(int, void*, std::size_t, int) override {}
  void all_gather(int, const void*, void*, const PerRank&) override {}
  void reduce_scatter(int, const void*, void*, const PerRank&, const DeviceReduction&) override {}
  void all_to_all(int, const void*, void*, const PerRank&, const PerRank&) override {}
  std::unique_ptr<DeviceEngine> split(const std::vector<int>& members,
                                      std::uint32_t split_id) override {
    return engine_->split(members, split_id);
  }
  std::shared_ptr<Device> open(int ordinal) override { return engine_->open(ordinal); }
  std::shared_ptr<Device> device(int ordinal) override { return engine_->device(ordinal); }
  CudaStream stream(int lane) override { return engine_->stream(lane); }
  CudaStream pack_stream(int lane) override { return engine_->pack_stream(lane); }
  void* buffer(int lane, std::size_t bytes) override { return engine_->buffer(lane, bytes); }
  std::string refusal(const DeviceReduction& reduction) const override {
    return engine_->refusal(reduction);
  }
  bool quiesce(Clock::time_point deadline) noexcept override { return engine_->quiesce(deadline); }
  void check() override { engine_->check(); }
  void abort(const Status& status) noexcept override { engine_->abort(status); }

 protected:
  const std::unique_ptr<DeviceEngine> engine_;
};

/// One that is late: it calls `before` first.
class DeviceLatecomer : public DeviceDeserter {
 public:
  DeviceLatecomer(std::unique_ptr<DeviceEngine> engine, std::function<void()> before)
      : DeviceDeserter(std::move(engine)), before_(std::move(before)) {}

  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const DeviceReduction& reduction) override {
    before_();
    engine_->all_reduce(lane, send, recv, count, reduction);
  }

 private:
  const std::function<void()> before_;
};

}  // namespace aiacc
