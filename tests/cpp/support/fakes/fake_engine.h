#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/engines/engine.h"
#include "csrc/engines/members.h"
#include "csrc/kernels/reduce.h"
#include "csrc/kernels/scale.h"
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

/// Of no bytes as well, which have no address.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memmove(to, from, bytes);
  }
}

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
                  const Reduction& reduction) override {
    const auto [dtype, op, factor] = reduction;
    const std::size_t bytes = count * size_of(dtype);
    const std::string what = std::string("all_reduce of ") + std::to_string(count) + " " +
                             name_of(dtype) + " " + name_of(op);
    run(lane, bytes, {what, send, recv}, [&](auto& calls) {
      std::vector<std::byte> result(bytes);
      copy_bytes(result.data(), calls[0]->send, bytes);
      for (std::size_t rank = 1; rank < calls.size(); ++rank) {
        reduce(result.data(), calls[rank]->send, count, dtype, op);
      }
      copy_scaled(result.data(), result.data(), count, dtype, factor);
      for (auto& call : calls) {
        copy_bytes(call->recv, result.data(), bytes);
      }
    });
  }

  void broadcast(int lane, void* buffer, std::size_t bytes, int root) override {
    const std::string what =
        "broadcast of " + std::to_string(bytes) + " bytes from " + std::to_string(root);
    run(lane, bytes, {what, buffer, buffer}, [&](auto& calls) {
      for (auto& call : calls) {
        copy_bytes(call->recv, calls[static_cast<std::size_t>(root)]->send, bytes);
      }
    });
  }

  void all_gather(int lane,
                  const void* send,
                  void* recv,
                  const std::vector<std::size_t>& bytes_of) override {
    std::string what = "all_gather of";
    std::size_t total = 0;
    for (const std::size_t bytes : bytes_of) {
      what += " " + std::to_string(bytes);
      total += bytes;
    }
    run(lane, total, {what, send, recv}, [&](auto& calls) {
      for (auto& call : calls) {
        auto* target = static_cast<std::byte*>(call->recv);
        for (std::size_t rank = 0; rank < calls.size(); ++rank) {
          if (bytes_of[rank] > 0) {
            copy_bytes(target, calls[rank]->send, bytes_of[rank]);
          }
          target += bytes_of[rank];
        }
      }
    });
  }

  void reduce_scatter(int lane,
                      const void* send,
                      void* recv,
                      const std::vector<std::size_t>& counts,
                      const Reduction& reduction) override {
    const auto [dtype, op, factor] = reduction;
    const std::size_t element = size_of(dtype);
    std::string what = std::string("reduce_scatter of ") + name_of(dtype) + " " + name_of(op);
    for (const std::size_t count : counts) {
      what += " " + std::to_string(count);
    }
    const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    run(lane, total * element, {what, send, recv}, [&](auto& calls) {
      std::size_t offset = 0;
      for (std::size_t owner = 0; owner < calls.size(); ++owner) {
        std::vector<std::byte> result(counts[owner] * element);
        const auto part_of = [&](std::size_t rank) {
          return static_cast<const std::byte*>(calls[rank]->send) + offset;
        };
        if (!result.empty()) {
          copy_bytes(result.data(), part_of(0), result.size());
          for (std::size_t rank = 1; rank < calls.size(); ++rank) {
            reduce(result.data(), part_of(rank), counts[owner], dtype, op);
          }
          copy_scaled(calls[owner]->recv, result.data(), counts[owner], dtype, factor);
        }
        offset += result.size();
      }
    });
  }

  void all_to_all(int lane,
                  const void* send,
                  void* recv,
                  const std::vector<std::size_t>& send_bytes,
                  const std::vector<std::size_t>& recv_bytes) override {
    const std::size_t total = std::accumulate(send_bytes.begin(), send_bytes.end(), std::size_t{0});
    run(lane, total, {"all_to_all", send, recv, send_bytes, recv_bytes}, [](auto& calls) {
      std::vector<std::size_t> sent(calls.size(), 0);  // bytes of every rank's buffer
      for (std::size_t to = 0; to < calls.size(); ++to) {
        auto* target = static_cast<std::byte*>(calls[to]->recv);
        for (std::size_t from = 0; from < calls.size(); ++from) {
          const std::size_t bytes = calls[from]->send_bytes[to];
          if (bytes > 0) {
            copy_bytes(
                target, static_cast<const std::byte*>(calls[from]->send) + sent[from], bytes);
          }
          sent[from] += bytes;
          target += bytes;
        }
      }
    });
  }

  std::unique_ptr<Engine> split(const std::vector<int>& members, std::uint32_t split_id) override {
    const int index = index_among(members, rank_, hub_->size_);
    std::unique_lock lock(hub_->mutex_);
    FakeHub::Split& split = hub_->splits_[split_id];
    if (split.hub == nullptr) {
      split.members = members;
      split.hub = std::make_shared<FakeHub>(static_cast<int>(members.size()), lanes());
    }
    AIACC_CHECK(split.members == members);
    AIACC_CHECK(split.arrived < members.size());  // each group number is used once
    if (++split.arrived == members.size()) {
      hub_->changed_.notify_all();
    }
    hub_->changed_.wait(lock, [&] { return split.arrived == members.size() || aborted_; });
    if (aborted_) {
      throw Error(*aborted_);
    }
    return std::make_unique<FakeEngine>(split.hub, index, before_);
  }

  /// The hook stands for the network.
  double send_busy_s(int lane) const override {
    return std::chrono::duration<double>(
               std::chrono::nanoseconds(hook_ns_.at(static_cast<std::size_t>(lane)).load()))
        .count();
  }

  LaneWait waits(int lane) const override {
    return marks_.at(static_cast<std::size_t>(lane)).get();
  }

  void abort(const Status& status) noexcept override {
    const std::lock_guard lock(hub_->mutex_);
    if (!aborted_) {
      aborted_ = status;
    }
    hub_->changed_.notify_all();
  }

 private:
  void run(int lane_number,
           std::size_t bytes,
           FakeHub::Call call,
           const FakeHub::Perform& perform) {
    AIACC_CHECK(lane_number >= 0 && lane_number <= lanes());
    if (before_) {
      const auto start = std::chrono::steady_clock::now();
      before_(lane_number, bytes);
      const std::chrono::nanoseconds taken = std::chrono::steady_clock::now() - start;
      hook_ns_.at(static_cast<std::size_t>(lane_number)) += taken.count();
    }
    std::unique_lock lock(hub_->mutex_);
    if (aborted_) {
      throw Error(*aborted_);
    }
    FakeHub::Lane& lane = hub_->lanes_[static_cast<std::size_t>(lane_number)];
    std::optional<FakeHub::Call>& mine = lane.calls[static_cast<std::size_t>(rank_)];
    AIACC_CHECK(!mine.has_value());  // one thread at a time on a lane
    mine = std::move(call);
    const std::uint64_t number = lane.finished;
    if (++lane.arrived == hub_->size_) {
      finish(lane, lane_number, perform);
    }
    WaitMark& mark = marks_.at(static_cast<std::size_t>(lane_number));
    mark.sleeps(std::chrono::steady_clock::now(), -1);
    hub_->changed_.wait(lock, [&] { return lane.finished != number || aborted_; });
    mark.moves();
    if (lane.finished == number) {
      mine.reset();  // Nobody may touch this rank's buffers any more.
      --lane.arrived;
      throw Error(*aborted_);
    }
    if (!lane.disagreement.empty()) {
      throw Error(Code::kEngine, lane.disagreement);
    }
  }

  void finish(FakeHub::Lane& lane, int lane_number, const FakeHub::Perform& perform) {
    for (const auto& call : lane.calls) {
      if (call->what != lane.calls[0]->what) {
        lane.disagreement = "[test] lane " + std::to_string(lane_number) + ": " +
                            lane.calls[0]->what + " meets " + call->what;
      }
    }
    for (std::size_t from = 0; from < lane.calls.size() && lane.disagreement.empty(); ++from) {
      for (std::size_t to = 0; to < lane.calls[from]->send_bytes.size(); ++to) {
        if (lane.calls[from]->send_bytes[to] != lane.calls[to]->recv_bytes[from]) {
          lane.disagreement = "[test] lane " + std::to_string(lane_number) + ": rank " +
                              std::to_string(to) + " expects another piece of rank " +
                              std::to_string(from);
        }
      }
    }
    if (lane.disagreement.empty()) {
      perform(lane.calls);
    }
    for (auto& call : lane.calls) {
      call.reset();
    }
    lane.arrived = 0;
    ++lane.finished;
    hub_->changed_.notify_all();
  }

  std::shared_ptr<FakeHub> hub_;
  const int rank_;
  const Before before_;
  std::array<std::atomic<std::int64_t>, kMaxLanes + 1> hook_ns_{};  ///< spent in the hook, by lane
  std::array<WaitMark, kMaxLanes + 1> marks_{};                     ///< by lane
  std::optional<Status> aborted_;
};

}  // namespace aiacc
