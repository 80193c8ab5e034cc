#include "csrc/engines/hierarchical/hierarchical_engine.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/base/log.h"
#include "csrc/base/socket.h"
#include "csrc/base/thread.h"
#include "csrc/engines/local/local_engine.h"
#include "csrc/engines/members.h"
#include "csrc/engines/mpi/mpi_loader.h"
#include "csrc/engines/tcp/tcp_engine.h"

namespace aiacc {
namespace {

/// Bounds for a slot, which holds a block, where there are several hosts.
constexpr std::size_t kMinSlotBytes = std::size_t{256} << 10;
constexpr std::size_t kMaxSlotBytes = std::size_t{4} << 20;
/// Large enough for the network.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

/// While it lives, `engine` is aborted when `interrupt` is set, or the time is over.
class Watch {
 public:
  Watch(Engine& engine, const Cancellation& interrupt, double limit_s)
      : thread_(start_thread("aiacc watch", [this, &engine, &interrupt, limit_s] {
          run(engine, interrupt, limit_s);
        })) {}
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() {
    over_.set();
    thread_.join();
  }

 private:
  void run(Engine& engine, const Cancellation& interrupt, double limit_s) const {
    const auto deadline = Clock::now() + duration_of(limit_s);
    pollfd entries[2] = {{interrupt.fd(), POLLIN, 0}, {over_.fd(), POLLIN, 0}};
    if (poll_until(entries, 2, deadline) == 0) {
      char limit[32];
      std::snprintf(limit, sizeof limit, "%.3g", limit_s);
      engine.abort({Code::kTimeout,
                    std::string("[hierarchical] waited ") + limit +
                        " s to learn whether the ranks of all hosts share memory; a rank did not "
                        "come: look for its error, or raise AIACC_CONNECT_TIMEOUT_S"});
      return;
    }
    try {
      interrupt.check();
    } catch (const Error& error) {
      engine.abort(error.status());
    }
  }

  Event over_;
  std::thread thread_;
};

EngineContext checked(EngineContext context) {
  check_hosts(context);
  return context;
}

std::unique_ptr<ShmEngine> make_inside(const EngineContext& job,
                                       const ShmOptions& options,
                                       const Cancellation& interrupt) {
  return std::make_unique<ShmEngine>(job, options, &interrupt);
}

std::unique_ptr<Engine> make_tcp(const EngineContext& job,
                                 const std::vector<int>& ranks,
                                 std::uint32_t split_id,
                                 const Cancellation& interrupt) {
  return std::make_unique<TcpEngine>(job, ranks, split_id, interrupt);
}

std::unique_ptr<Engine> make_mpi(const EngineContext& job,
                                 const std::vector<int>& ranks,
                                 std::uint32_t split_id,
                                 const Cancellation& interrupt) {
  return split_id == job.split_id ? create_mpi_engine(job)
                                  : create_mpi_engine(job, ranks, split_id, interrupt);
}

}  // namespace

HierarchicalEngine::HierarchicalEngine(const EngineContext& context, HierarchyLevels levels)
    : HierarchicalEngine(checked(context),
                         std::move(levels),
                         all_ranks(context.size),
                         SplitIds(context.host_of.size(), context.split_id),
                         true,
                         nullptr) {}

HierarchicalEngine::HierarchicalEngine(const EngineContext& job,
                                       HierarchyLevels levels,
                                       std::vector<int> ranks,
                                       const SplitIds& split_ids,
                                       bool shares,
                                       const Cancellation* interrupt)
    : job_(job),
      levels_(std::move(levels)),
      ranks_(std::move(ranks)),
      rank_(index_among(ranks_, job.rank, job.size)),
      layout_(translated(job.host_of, ranks_)),
      split_ids_(split_ids),
      shares_(shares),
      scratch_(static_cast<std::size_t>(job.lanes)) {
  static_assert(ShmChannel::kSlots <= Engine::kTickets);
  connect(interrupt == nullptr ? cancellation_ : *interrupt);
  for (Engine* part : {flat_.get(), static_cast<Engine*>(inside_.get()), between_.get()}) {
    if (part != nullptr) {
      parts_.push_back(part);
    }
  }
}

void HierarchicalEngine::connect(const Cancellation& interrupt) {
  const auto hosts = static_cast<std::size_t>(layout_.hosts());
  if (ranks_.size() == 1) {
    flat_ = std::make_unique<LocalEngine>(context_among(job_, ranks_));
    return;
  }
  const bool one_host = hosts == 1;
  if (one_host && shares_) {
    const std::string problem = share_inside(interrupt);
    if (problem.empty()) {
      return;
    }
    shares_ = false;
    if (rank_ == 0) {
      AIACC_LOG(kWarning) << "[hierarchical] all tensors of these ranks travel by "
                          << levels_.flat_name << ": " << problem;
    }
  }
  flat_ = levels_.across(job_, ranks_, split_ids_.flat(), interrupt);
  if (one_host || hosts == ranks_.size() || !shares_) {
    return;
  }
  shares_ = all_share(share_inside(interrupt), interrupt);
  if (!shares_) {
    inside_.reset();
  } else if (local() < layout_.columns()) {
    between_ = levels_.across(
        job_, translated(ranks_, layout_.column(local())), split_ids_.column(local()), interrupt);
  }
}

/// What a slot holds of a buffer, 0 for a single host. Memory is taken for all slots of all lanes,
/// and again for every part: a block of more than a unit has would only be paid for.
std::size_t HierarchicalEngine::slot_bytes() const {
  if (layout_.hosts() == 1) {
    return 0;
  }
  const std::size_t unit = (std::min(job_.unit_bytes, kMaxSlotBytes) + 63) / 64 * 64;
  const std::size_t pieces = levels_.piece_bytes * static_cast<std::size_t>(layout_.columns());
  return std::min({kMaxSlotBytes, pieces, std::max(unit, kMinSlotBytes)});
}

std::string HierarchicalEngine::share_inside(const Cancellation& interrupt) {
  try {
    inside_ = levels_.inside(
        job_,
        {translated(ranks_, layout_.ranks_on(host())), split_ids_.host(host()), slot_bytes()},
        interrupt);
  } catch (const Error& error) {
    if (error.code() != Code::kEngine) {
      throw;
    }
    return error.what();
  }
  return "";
}

bool HierarchicalEngine::all_share(const std::string& problem, const Cancellation& interrupt) {
  // Other hosts may need as long as that to find out: to connect, and then to wait for a rank that
  // says nothing (kPatience of csrc/control/shm/memory_receiver.cc).
  const Watch watch(*flat_, interrupt, 5 * job_.connect_timeout_s);
  const auto none = static_cast<std::int32_t>(ranks_.size());
  std::int32_t first = problem.empty() ? none : rank_;
  flat_->all_reduce(flat_->express_lane(), &first, &first, 1, {DataType::kInt32, ReduceOp::kMin});
  if (first == rank_) {
    AIACC_LOG(kWarning) << "[hierarchical] all tensors of these ranks travel by "
                        << levels_.flat_name << ": " << problem;
  }
  return first == none;
}

template <class Operation>
void HierarchicalEngine::run(int lane, Operation operation) {
  AIACC_CHECK(lane >= 0 && lane <= lanes());
  cancellation_.check();
  try {
    operation();
  } catch (...) {
    abort(current_exception_status());
    cancellation_.check();  // the first failure is the cause, not this one
    throw;
  }
}

std::unique_ptr<Engine> HierarchicalEngine::split(const std::vector<int>& members,
                                                  std::uint32_t split_id) {
  const SplitIds split_ids = split_ids_.part(split_id);
  index_among(members, rank_, static_cast<int>(ranks_.size()));
  cancellation_.check();
  try {
    return std::unique_ptr<Engine>(new HierarchicalEngine(
        job_, levels_, translated(ranks_, members), split_ids, shares_, &cancellation_));
  } catch (...) {
    cancellation_.check();  // an abort is the cause of what it interrupted
    throw;
  }
}

Engine* HierarchicalEngine::alone(int lane) const {
  if (flat_ == nullptr) {
    return inside_.get();
  }
  return inside_ == nullptr || lane == express_lane() ? flat_.get() : nullptr;
}

void HierarchicalEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  run(lane, [&] {
    if (Engine* engine = alone(lane)) {
      return engine->all_reduce(lane, send, recv, count, reduction);
    }
    reduce_all(lane, send, recv, count, reduction);
  });
}

SharedSlots HierarchicalEngine::slots(int lane) const {
  return flat_ == nullptr ? inside_->slots(lane) : SharedSlots{};
}

void HierarchicalEngine::all_reduce_moved(int lane,
                                          std::size_t count,
                                          const Reduction& reduction,
                                          BlockMover& mover) {
  AIACC_CHECK(flat_ == nullptr);
  run(lane, [&] { inside_->all_reduce_moved(lane, count, reduction, mover); });
}

bool HierarchicalEngine::all_reduce_coded(int lane,
                                          const CodedReduce& reduce,
                                          CodedMemory& memory) {
  if (alone(lane) != nullptr) {
    return false;
  }
  run(lane, [&] { reduce_coded(lane, reduce, memory); });
  return true;
}

int HierarchicalEngine::exchanging(int ranks) const {
  return alone(0) != nullptr ? ranks : layout_.hosts();
}

void HierarchicalEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  AIACC_CHECK(root >= 0 && root < static_cast<int>(ranks_.size()));
  run(lane, [&] {
    if (Engine* engine = alone(lane)) {
      return engine->broadcast(lane, buffer, bytes, root);
    }
    spread(lane, static_cast<std::byte*>(buffer), bytes, root);
  });
}

void HierarchicalEngine::all_gather(int lane,
                                    const void* send,
                                    void* recv,
                                    const PerRank& bytes_of) {
  AIACC_CHECK(bytes_of.size() == ranks_.size());
  run(lane, [&] {
    Engine* engine = layout_.even() ? alone(lane) : any();
    if (engine != nullptr) {
      return engine->all_gather(lane, send, recv, bytes_of);
    }
    gather(lane, static_cast<const std::byte*>(send), static_cast<std::byte*>(recv), bytes_of);
  });
}

void HierarchicalEngine::reduce_scatter(
    int lane, const void* send, void* recv, const PerRank& counts, const Reduction& reduction) {
  AIACC_CHECK(counts.size() == ranks_.size());
  run(lane, [&] {
    Engine* engine = layout_.even() ? alone(lane) : any();
    if (engine != nullptr) {
      return engine->reduce_scatter(lane, send, recv, counts, reduction);
    }
    scatter(lane,
            static_cast<const std::byte*>(send),
            static_cast<std::byte*>(recv),
            counts,
            reduction);
  });
}

void HierarchicalEngine::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  run(lane, [&] { any()->all_to_all(lane, send, recv, send_bytes, recv_bytes); });
}

double HierarchicalEngine::send_busy_s(int lane) const {
  const Engine* outward = inside_ == nullptr ? flat_.get() : between_.get();
  return outward == nullptr ? 0 : outward->send_busy_s(lane);
}

LaneWait HierarchicalEngine::waits(int lane) const {
  return longest_of(parts_, [lane](const Engine& part) { return part.waits(lane); });
}

void HierarchicalEngine::abort(const Status& status) noexcept {
  cancellation_.set(status);
  for (Engine* part : parts_) {
    part->abort(status);
  }
}

HierarchyLevels tcp_levels() { return {"hierarchical", "tcp", kPieceBytes, make_inside, make_tcp}; }

HierarchyLevels mpi_levels() {
  return {"hierarchical-mpi", "mpi", kPieceBytes, make_inside, make_mpi};
}

std::unique_ptr<Engine> create_hierarchical_engine(const EngineContext& context) {
  return std::make_unique<HierarchicalEngine>(context, tcp_levels());
}

std::unique_ptr<Engine> create_hierarchical_mpi_engine(const EngineContext& context) {
  return std::make_unique<HierarchicalEngine>(context, mpi_levels());
}

}  // namespace aiacc
