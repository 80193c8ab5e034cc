#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/members.h"
#include "csrc/planning/parameters.h"

namespace aiacc {

/// What the fake engines of all ranks share. A lane is a barrier: whoever comes last does the
/// operation for all. Ranks that issue different operations on a lane are found out.
class FakeHub {
 public:
  FakeHub(int size, int lanes)
      : size_(size), lanes_(static_cast<std::size_t>(lanes) + 1), numbered_(lanes) {
    for (Lane& lane : lanes_) {
      lane.calls.resize(static_cast<std::size_t>(size));
    }
  }

 private:
  friend class FakeEngine;
  struct Call {
    std::string what;  ///< equal on all ranks
    const void* send = nullptr;
    void* recv = nullptr;
    std::vector<std::size_t> send_bytes = {};  ///< of an all-to-all
    std::vector<std::size_t> recv_bytes = {};
  };
  /// Does the operation for all ranks; `calls[r]` is rank r's.
  using Perform = std::function<void(std::vector<std::optional<Call>>& calls)>;
  struct Lane {
    std::vector<std::optional<Call>> calls;
    int arrived = 0;
    std::uint64_t finished = 0;
    std::string disagreement;
  };
  /// Engines among some ranks that are being made.
  struct Split {
    std::vector<int> members;
    std::shared_ptr<FakeHub> hub;
    std::size_t arrived = 0;
  };

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Lane> lanes_;
  std::map<std::uint32_t, Split> splits_;
  const int numbered_;
};

/// Engine between threads of one process: exact, and strict about the order on every lane.
class FakeEngine : public Engine {
 public:
  /// Called before each operation, outside of any lock; may block or throw.
  using Before = std::function<void(int lane, std::size_t bytes)>;

  FakeEngine(std::shared_ptr<FakeHub> hub, int rank, Before before = {})
      : hub_(std::move(hub)), rank_(rank), before_(std::move(before)) {}

  const char* name() const override { return "fake"; }
  int lanes() const override { return hub_->numbered_; }

  void all_reduce(int lane,
                  const void* send,
                  void* recv,
                  std::size_t count,
                  const Reduction& reduction) override;

  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override;

  void all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) override;

  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const PerRank& counts,
                      const Reduction& reduction) override;

  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const PerRank& send_bytes,
                  const PerRank& recv_bytes) override;

  std::unique_ptr<Engine> split(const std::vector<int>& members, std::uint32_t split_id) override;

  /// The hook stands for the network.
  double send_busy_s(int lane) const override;

  LaneWait waits(int lane) const override;

  void abort(const Status& status) noexcept override;

 private:
  void run(int lane_number, std::size_t bytes, FakeHub::Call call, const FakeHub::Perform& perform);

  void finish(FakeHub::Lane& lane, int lane_number, const FakeHub::Perform& perform);

  std::shared_ptr<FakeHub> hub_;
  const int rank_;
  const Before before_;
  std::array<std::atomic<std::int64_t>, kMaxLanes + 1> hook_ns_{};  ///< spent in the hook, by lane
  std::array<WaitMark, kMaxLanes + 1> marks_{};                     ///< by lane
  std::optional<Status> aborted_;
};

}  // namespace aiacc
