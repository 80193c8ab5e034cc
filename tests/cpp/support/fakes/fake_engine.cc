#include "tests/cpp/support/fakes/fake_engine.h"

#include <chrono>
#include <cstring>
#include <numeric>

#include "csrc/kernels/reduce.h"
#include "csrc/kernels/scale.h"

namespace aiacc {
namespace {

/// Of no bytes as well, which have no address.
void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memmove(to, from, bytes);
  }
}

}  // namespace

void FakeEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
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

void FakeEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  const std::string what =
      "broadcast of " + std::to_string(bytes) + " bytes from " + std::to_string(root);
  run(lane, bytes, {what, buffer, buffer}, [&](auto& calls) {
    for (auto& call : calls) {
      copy_bytes(call->recv, calls[static_cast<std::size_t>(root)]->send, bytes);
    }
  });
}

void FakeEngine::all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) {
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

void FakeEngine::reduce_scatter(
    int lane, const void* send, void* recv, const PerRank& counts, const Reduction& reduction) {
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

void FakeEngine::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  const std::size_t total = std::accumulate(send_bytes.begin(), send_bytes.end(), std::size_t{0});
  run(lane, total, {"all_to_all", send, recv, send_bytes, recv_bytes}, [](auto& calls) {
    std::vector<std::size_t> sent(calls.size(), 0);  // bytes of every rank's buffer
    for (std::size_t to = 0; to < calls.size(); ++to) {
      auto* target = static_cast<std::byte*>(calls[to]->recv);
      for (std::size_t from = 0; from < calls.size(); ++from) {
        const std::size_t bytes = calls[from]->send_bytes[to];
        if (bytes > 0) {
          copy_bytes(target, static_cast<const std::byte*>(calls[from]->send) + sent[from], bytes);
        }
        sent[from] += bytes;
        target += bytes;
      }
    }
  });
}

std::unique_ptr<Engine> FakeEngine::split(const std::vector<int>& members, std::uint32_t split_id) {
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

double FakeEngine::send_busy_s(int lane) const {
  return std::chrono::duration<double>(
             std::chrono::nanoseconds(hook_ns_.at(static_cast<std::size_t>(lane)).load()))
      .count();
}

LaneWait FakeEngine::waits(int lane) const {
  return marks_.at(static_cast<std::size_t>(lane)).get();
}

void FakeEngine::abort(const Status& status) noexcept {
  const std::lock_guard lock(hub_->mutex_);
  if (!aborted_) {
    aborted_ = status;
  }
  hub_->changed_.notify_all();
}

void FakeEngine::run(int lane_number,
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

void FakeEngine::finish(FakeHub::Lane& lane, int lane_number, const FakeHub::Perform& perform) {
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

}  // namespace aiacc
