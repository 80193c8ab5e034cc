#include "csrc/engines/shm/shm_engine.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/members.h"

namespace aiacc {
namespace {

/// Fits the second-level cache of a core, together with what the other rank is working on.
constexpr std::size_t kSlotBytes = std::size_t{256} << 10;
/// Small buffers only.
constexpr std::size_t kExpressSlotBytes = std::size_t{64} << 10;

/// All ranks of the context, which must be on one host.
ShmOptions whole_host(const EngineContext& context) {
  std::string hosts;
  for (std::size_t rank = 1; rank < context.host_of.size(); ++rank) {
    if (context.host_of[rank] != context.host_of[0]) {
      hosts += (hosts.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  if (!hosts.empty()) {
    throw Error(Code::kInvalidArgument,
                "[shm] rank(s) " + hosts + " are not on the host of rank 0 (expected all " +
                    std::to_string(context.size) +
                    " ranks on one host); set AIACC_ENGINE=hierarchical, or auto");
  }
  return {all_ranks(context.size), context.split_id, 0};
}

int index_of(const EngineContext& context, const std::vector<int>& ranks) {
  if (context.connector == nullptr) {
    AIACC_CHECK(ranks.size() == 1);
    return 0;
  }
  return index_among(ranks, context.connector->rank(), context.connector->size());
}

}  // namespace

ShmEngine::ShmEngine(const EngineContext& context) : ShmEngine(context, whole_host(context)) {}

ShmEngine::ShmEngine(const EngineContext& context,
                     ShmOptions options,
                     const Cancellation* interrupt)
    : context_(context), options_(std::move(options)), rank_(index_of(context, options_.ranks)) {
  std::vector<std::size_t> starts;
  std::size_t bytes = 0;
  for (int lane = 0; lane <= lanes(); ++lane) {
    starts.push_back(bytes);
    bytes += ShmChannel::segment_bytes(slot_bytes(lane));
  }
  const auto prepare = [&](std::byte* part) {
    for (const std::size_t start : starts) {
      ShmChannel::reset(part + start);
    }
  };
  memory_ = share_memory(context.connector,
                         {options_.ranks,
                          options_.split_id,
                          bytes,
                          context.connect_timeout_s,
                          interrupt == nullptr ? -1 : interrupt->fd(),
                          prepare});
  for (int lane = 0; lane <= lanes(); ++lane) {
    std::vector<void*> segments;
    segments.reserve(memory_.parts.size());
    for (std::byte* part : memory_.parts) {
      segments.push_back(part + starts[static_cast<std::size_t>(lane)]);
    }
    channels_.push_back(std::make_unique<ShmChannel>(
        std::move(segments), rank_, slot_bytes(lane), context.spin_us, cancellation_));
  }
}

std::size_t ShmEngine::slot_bytes(int lane) const {
  const std::size_t wanted = options_.slot_bytes == 0 ? kSlotBytes : options_.slot_bytes;
  return lane == express_lane() ? std::min(wanted, kExpressSlotBytes) : wanted;
}

template <class Operation>
void ShmEngine::run(int lane, Operation operation) {
  AIACC_CHECK(lane >= 0 && lane <= lanes());
  cancellation_.check();
  try {
    operation(*channels_[static_cast<std::size_t>(lane)]);
  } catch (...) {
    abort(current_exception_status());
    cancellation_.check();  // the first failure is the cause, not this one
    throw;
  }
}

void ShmEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  AIACC_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  run(lane, [&](ShmChannel& on) { on.all_reduce(send, recv, count, reduction, nullptr, size()); });
}

/// Those of all lanes and ranks: a rank copies to its own, and from all.
SharedSlots ShmEngine::slots(int lane) const {
  AIACC_CHECK(lane >= 0 && lane <= lanes());
  return size() == 1 ? SharedSlots{} : SharedSlots{memory_.memory.data(), memory_.memory.size()};
}

void ShmEngine::all_reduce_moved(int lane,
                                 std::size_t count,
                                 const Reduction& reduction,
                                 BlockMover& mover) {
  AIACC_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  AIACC_CHECK(size() > 1 && count * size_of(reduction.dtype) >= kLeastMovedBytes);
  run(lane, [&](ShmChannel& on) { on.all_reduce_moved(count, reduction, mover); });
}

void ShmEngine::all_reduce_across(int lane,
                                  const void* send,
                                  void* recv,
                                  std::size_t count,
                                  const Reduction& reduction,
                                  CrossHostReduce& across,
                                  int owners) {
  AIACC_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  AIACC_CHECK(owners >= 1 && owners <= size());
  run(lane, [&](ShmChannel& on) { on.all_reduce(send, recv, count, reduction, &across, owners); });
}

void ShmEngine::exchange(int lane,
                         const void* send,
                         const PerRank& bytes_of,
                         const std::vector<void*>& recv) {
  AIACC_CHECK(bytes_of.size() == options_.ranks.size() && recv.size() == bytes_of.size());
  run(lane, [&](ShmChannel& on) { on.exchange(send, bytes_of, recv); });
}

void ShmEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  AIACC_CHECK(root >= 0 && root < size());
  std::vector<std::size_t> bytes_of(options_.ranks.size(), 0);
  bytes_of[static_cast<std::size_t>(root)] = bytes;
  const std::vector<void*> to(options_.ranks.size(), buffer);
  exchange(lane, buffer, bytes_of, to);
}

void ShmEngine::all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) {
  std::vector<void*> to;
  auto* next = static_cast<std::byte*>(recv);
  for (const std::size_t bytes : bytes_of) {
    to.push_back(next);
    next += bytes;
  }
  exchange(lane, send, bytes_of, to);
}

void ShmEngine::reduce_scatter(
    int lane, const void* send, void* recv, const PerRank& counts, const Reduction& reduction) {
  AIACC_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  AIACC_CHECK(counts.size() == options_.ranks.size());
  run(lane, [&](ShmChannel& on) { on.reduce_scatter(send, recv, counts, reduction); });
}

void ShmEngine::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  const auto own = static_cast<std::size_t>(rank_);
  AIACC_CHECK(send_bytes.size() == options_.ranks.size());
  AIACC_CHECK(recv_bytes.size() == options_.ranks.size() && send_bytes[own] == recv_bytes[own]);
  run(lane, [&](ShmChannel& on) { on.all_to_all(send, recv, send_bytes, recv_bytes); });
}

std::unique_ptr<Engine> ShmEngine::split(const std::vector<int>& members, std::uint32_t split_id) {
  AIACC_CHECK(split_id < std::numeric_limits<std::uint32_t>::max());
  index_among(members, rank_, size());
  cancellation_.check();
  ShmOptions part{translated(options_.ranks, members), split_id + 1, options_.slot_bytes};
  try {
    return std::make_unique<ShmEngine>(context_, std::move(part), &cancellation_);
  } catch (...) {
    cancellation_.check();  // an abort is the cause of what it interrupted
    throw;
  }
}

LaneWait ShmEngine::waits(int lane) const {
  AIACC_CHECK(lane >= 0 && lane <= lanes());
  LaneWait wait = channels_[static_cast<std::size_t>(lane)]->waits();
  if (wait.for_rank >= 0) {
    wait.for_rank = options_.ranks[static_cast<std::size_t>(wait.for_rank)];
  }
  return wait;
}

void ShmEngine::abort(const Status& status) noexcept {
  cancellation_.set(status);
  for (const auto& channel : channels_) {
    channel->wake();
  }
}

}  // namespace aiacc
