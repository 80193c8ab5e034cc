#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/device_engine.h"
#include "csrc/engines/engine.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {

/// An engine that leaves out all but all-reduces on the express lane: as if its rank had planned
/// otherwise.
class Deserter : public Engine {
 public:
  explicit Deserter(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  const char* name() const override { return engine_->name(); }
  int lanes() const override { return engine_->lanes(); }
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override {
    if (lane == express_lane()) {
      engine_->all_reduce(lane, send, recv, count, reduction);
    }
  }
  void broadcast(int, void*, std::size_t, int) override {}
  void all_gather(int, const void*, void*, const PerRank&) override {}
  void reduce_scatter(int, const void*, void*, const PerRank&, const Reduction&) override {}
  void all_to_all(int, const void*, void*, const PerRank&, const PerRank&) override {}
  std::unique_ptr<Engine> split(const std::vector<int>& members, std::uint32_t split_id) override {
    return engine_->split(members, split_id);
  }
  double send_busy_s(int lane) const override { return engine_->send_busy_s(lane); }
  LaneWait waits(int lane) const override { return engine_->waits(lane); }
  void abort(const Status& status) noexcept override { engine_->abort(status); }

 private:
  const std::unique_ptr<Engine> engine_;
};

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

/// Large enough for a numbered lane.
inline constexpr std::int64_t kDesertedRows = 99'000;

/// One operation on tensors of GPU `device` (-1: in host memory) that rank `deserter` of `size`,
/// whose engine is a Deserter, leaves out: the same error must end it on all the others, and what
/// the deserter does next.
inline void check_desertion(Coordinator& coordinator,
                            OpKind kind,
                            int rank,
                            int size,
                            int deserter,
                            std::int32_t device = -1) {
  Request request = make_request("x", kind, {kDesertedRows});
  request.device = device;
  if (kind == OpKind::kAlltoall) {
    request.numbers.assign(static_cast<std::size_t>(size), kDesertedRows / size);
    request.numbers.back() += kDesertedRows % size;
  }
  std::vector<float> data(kDesertedRows, 1);
  const bool gathers = kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
  Status status = status_of([&] {
    finish(coordinator, submit(coordinator, request, data.data(), gathers ? nullptr : data.data()));
  });
  if (rank == deserter) {
    EXPECT_TRUE(status.ok()) << status.message();
  }
  if (status.ok()) {  // also on a GPU, where an operation is done when it is queued
    const std::string own = "only rank " + std::to_string(rank) + " comes here";
    status = status_of([&] { sum(coordinator, own, 1); });
  }
  expect_error(
      status,
      Code::kTimeout,
      {"('x') can never end", "rank(s) " + std::to_string(deserter) + " are done with it"});
}

}  // namespace aiacc
