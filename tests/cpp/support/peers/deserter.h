#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "csrc/engines/engine.h"

namespace aiacc {

/// An engine that leaves out what is not on the express lane: as if its rank had planned otherwise.
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
    if (stays(lane)) {
      engine_->all_reduce(lane, send, recv, count, reduction);
    }
  }
  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override {
    if (stays(lane)) {
      engine_->broadcast(lane, buffer, bytes, root);
    }
  }
  void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) override {
    if (stays(lane)) {
      engine_->all_gather(lane, send, recv, bytes_of);
    }
  }
  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction) override {
    if (stays(lane)) {
      engine_->reduce_scatter(lane, send, recv, counts, reduction);
    }
  }
  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes) override {
    if (stays(lane)) {
      engine_->all_to_all(lane, send, recv, send_bytes, recv_bytes);
    }
  }
  std::unique_ptr<Engine> split(const std::vector<int>& members, std::uint32_t split_id) override {
    return engine_->split(members, split_id);
  }
  double send_busy_s(int lane) const override { return engine_->send_busy_s(lane); }
  LaneWait waits(int lane) const override { return engine_->waits(lane); }
  void abort(const Status& status) noexcept override { engine_->abort(status); }

 private:
  bool stays(int lane) const { return lane == express_lane(); }

  const std::unique_ptr<Engine> engine_;
};

}  // namespace aiacc
