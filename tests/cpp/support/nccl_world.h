#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/engine.h"
#include "csrc/engines/nccl/nccl_engine.h"
#include "csrc/kernels/scale.h"
#include "tests/cpp/support/fakes/fake_nccl.h"
#include "tests/cpp/support/ranks.h"
#include "tests/cpp/support/tcp_world.h"

namespace aiacc {

/// Ranks with a GPU each, or several, in software, and NCCL between them.
struct NcclWorld {
  explicit NcclWorld(int size,
                     int version = kNcclHeaderVersion,
                     int per_rank = 1,
                     std::chrono::duration<double> connect_timeout = std::chrono::seconds(20))
      : cuda(size * per_rank),
        nccl(cuda, version),
        tcp(size, connect_timeout.count()),
        gpus_each(per_rank),
        connect_timeout_s(connect_timeout.count()) {}

  EngineContext context(int rank, int lanes) {
    EngineContext context;
    context.rank = rank;
    context.size = tcp.size();
    context.lanes = lanes;
    context.connector = &tcp.connector(rank);
    context.device = rank * gpus_each;
    context.connect_timeout_s = connect_timeout_s;
    return context;
  }
  std::unique_ptr<NcclEngine> engine(int rank, int lanes) {
    return std::make_unique<NcclEngine>(cuda.driver(), nccl.api(), context(rank, lanes));
  }

  FakeCuda cuda;
  FakeNccl nccl;
  TcpWorld tcp;
  const int gpus_each;
  const double connect_timeout_s;
};

/// Runs `body(rank, engine)` with the device's context on every rank, with what `make(rank)` makes;
/// the failure of one aborts the engines of the others. All engines live until every rank has
/// ended; nothing may have been misused.
template <class Make, class Body>
void with_gpu_engines(NcclWorld& world, Make make, Body body) {
  const int size = world.tcp.size();
  {
    std::vector<decltype(make(0))> engines(static_cast<std::size_t>(size));
    run_as_ranks(size, [&](int rank, RankThreads& rank_threads) {
      auto& engine = engines[static_cast<std::size_t>(rank)];
      engine = make(rank);
      const auto guard =
          rank_threads.on_failure([&](const Status& status) { engine->abort(status); });
      const auto device = engine->device(rank);
      const Device::Scope scope(*device);
      body(rank, *engine);
    });
  }
  EXPECT_EQ(0, world.nccl.misuses()) << world.nccl.complaint();
  EXPECT_EQ(0, world.cuda.misuses());
  EXPECT_EQ(0, world.nccl.communicators());
  EXPECT_EQ(0, world.nccl.registrations());
}

template <class Body>
void with_nccl(NcclWorld& world, int lanes, Body body) {
  with_gpu_engines(world, [&](int rank) { return world.engine(rank, lanes); }, body);
}

/// An engine for GPUs as the checks for all engines want it: operations return with the result, and
/// take a factor.
class FinishingEngine : public Engine {
 public:
  FinishingEngine(DeviceEngine& engine, int rank)
      : engine_(engine), rank_(static_cast<std::size_t>(rank)) {}

  const char* name() const override { return engine_.name(); }
  int lanes() const override { return engine_.lanes(); }
  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override {
    engine_.all_reduce(lane, send, recv, count, {reduction.dtype, reduction.op});
    finish();
    copy_scaled(recv, recv, count, reduction.dtype, reduction.factor);
  }
  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override {
    engine_.broadcast(lane, buffer, bytes, root);
    finish();
  }
  void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) override {
    engine_.all_gather(lane, send, recv, bytes_of);
    finish();
  }
  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction) override {
    engine_.reduce_scatter(lane, send, recv, counts, {reduction.dtype, reduction.op});
    finish();
    copy_scaled(recv, recv, counts.at(rank_), reduction.dtype, reduction.factor);
  }
  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes) override {
    engine_.all_to_all(lane, send, recv, send_bytes, recv_bytes);
    finish();
  }
  std::unique_ptr<Engine> split(const std::vector<int>&, std::uint32_t) override { return nullptr; }
  void abort(const Status& status) noexcept override { engine_.abort(status); }

 private:
  void finish() { AIACC_CHECK(engine_.quiesce(Clock::now() + std::chrono::seconds(60))); }

  DeviceEngine& engine_;
  const std::size_t rank_;  ///< among those of the engine
};

}  // namespace aiacc
