#include "csrc/engines/mpi/mpi_engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>

#include "csrc/base/error.h"
#include "csrc/engines/mpi/mpi_request.h"

namespace aiacc {

/// One lane: the channel of the node, and MPI for what leaves it.
class MpiEngine::Lane : public CrossNodeReduce {
 public:
  Lane(MpiSession& session,
       const MpiLane& resources,
       double spin_us,
       const Cancellation& cancellation)
      : session_(session),
        plugin_(session.plugin()),
        resources_(resources),
        spin_(std::chrono::nanoseconds(static_cast<std::int64_t>(spin_us * 1e3))),
        cancellation_(cancellation),
        channel_(resources.segments,
                 session.topology().node_rank,
                 resources.slot_bytes,
                 spin_us,
                 cancellation) {}

  ~Lane() override {
    if (std::find(outstanding_.begin(), outstanding_.end(), true) != outstanding_.end()) {
      session_.spoil();
    }
  }

  void wake() noexcept { channel_.wake(); }

  void all_reduce(const void* send, void* recv, std::size_t count, const Reduction& reduction) {
    channel_.all_reduce(send, recv, count, reduction, one_node() ? nullptr : this);
  }

  void broadcast(void* buffer, std::size_t bytes, int root) {
    const auto size = static_cast<std::size_t>(session_.topology().size);
    if (one_node()) {
      std::vector<std::size_t> bytes_of(size, 0);
      bytes_of[static_cast<std::size_t>(root)] = bytes;
      channel_.exchange(buffer, bytes_of, std::vector<void*>(size, buffer));
      return;
    }
    std::vector<std::byte>& staging = *resources_.staging;
    for (std::size_t from = 0; from < bytes; from += staging.size()) {
      const std::size_t part = std::min(staging.size(), bytes - from);
      std::byte* at = static_cast<std::byte*>(buffer) + from;
      if (root == session_.topology().rank) {
        std::memcpy(staging.data(), at, part);
      }
      MpiHandle& request = begin(0);
      check_mpi(plugin_,
                plugin_.start_broadcast(
                    resources_.world, staging.data(), static_cast<int>(part), root, &request),
                "MPI_Ibcast");
      finish(0);
      if (root != session_.topology().rank) {
        std::memcpy(at, staging.data(), part);
      }
    }
  }

  void all_gather(const void* send, void* recv, const std::vector<std::size_t>& bytes_of) {
    std::vector<std::size_t> starts(bytes_of.size(), 0);
    std::partial_sum(bytes_of.begin(), bytes_of.end() - 1, starts.begin() + 1);
    auto* base = static_cast<std::byte*>(recv);
    if (one_node()) {
      std::vector<void*> places;
      places.reserve(starts.size());
      for (const std::size_t start : starts) {
        places.push_back(base + start);
      }
      channel_.exchange(send, bytes_of, places);
      return;
    }
    const std::size_t step = resources_.staging->size() / bytes_of.size();
    const std::size_t longest = *std::max_element(bytes_of.begin(), bytes_of.end());
    for (std::size_t from = 0; from < longest; from += step) {
      gather_step(static_cast<const std::byte*>(send), base, bytes_of, starts, from, step);
    }
  }

  // CrossNodeReduce, called by the channel.
  void start(int ticket, void* data, std::size_t count, DataType dtype, ReduceOp op) override {
    if (count > 0) {
      MpiHandle& request = begin(ticket);
      check_mpi(plugin_,
                plugin_.start_all_reduce(resources_.cross,
                                         data,
                                         static_cast<int>(count),
                                         static_cast<int>(dtype),
                                         static_cast<int>(op),
                                         &request),
                "MPI_Iallreduce");
    }
  }

  void finish(int ticket) override {
    const auto index = static_cast<std::size_t>(ticket);
    if (outstanding_[index]) {
      wait_for_request(plugin_, &requests_[index], spin_, [this] { cancellation_.check(); });
      outstanding_[index] = false;
    }
  }

 private:
  bool one_node() const { return session_.topology().nodes == 1; }

  MpiHandle& begin(int ticket) {
    outstanding_[static_cast<std::size_t>(ticket)] = true;
    return requests_[static_cast<std::size_t>(ticket)];
  }

  /// Gathers what every rank has between `from` and `from` + `step`.
  void gather_step(const std::byte* send,
                   std::byte* recv,
                   const std::vector<std::size_t>& bytes_of,
                   const std::vector<std::size_t>& starts,
                   std::size_t from,
                   std::size_t step) {
    const auto mine = static_cast<std::size_t>(session_.topology().rank);
    std::byte* staging = resources_.staging->data();
    parts_.clear();
    offsets_.clear();
    for (std::size_t rank = 0; rank < bytes_of.size(); ++rank) {
      const std::size_t left = bytes_of[rank] > from ? bytes_of[rank] - from : 0;
      parts_.push_back(static_cast<int>(std::min(step, left)));
      offsets_.push_back(static_cast<int>(rank * step));
    }
    if (parts_[mine] > 0) {
      std::memcpy(staging + mine * step, send + from, static_cast<std::size_t>(parts_[mine]));
    }
    MpiHandle& request = begin(0);
    check_mpi(plugin_,
              plugin_.start_all_gather(
                  resources_.world, staging, parts_.data(), offsets_.data(), &request),
              "MPI_Iallgatherv");
    finish(0);
    for (std::size_t rank = 0; rank < bytes_of.size(); ++rank) {
      if (parts_[rank] > 0) {
        std::memcpy(recv + starts[rank] + from,
                    staging + rank * step,
                    static_cast<std::size_t>(parts_[rank]));
      }
    }
  }

  MpiSession& session_;
  const MpiPlugin& plugin_;
  const MpiLane resources_;
  Spin spin_;
  const Cancellation& cancellation_;
  NodeChannel channel_;
  std::array<MpiHandle, NodeChannel::kSlots> requests_{};
  std::array<bool, NodeChannel::kSlots> outstanding_{};
  std::vector<int> parts_;
  std::vector<int> offsets_;
};

MpiEngine::MpiEngine(MpiSession& session, const EngineContext& context)
    : session_(session), lanes_(context.lanes) {
  const MpiTopology& topology = session.topology();
  if (topology.rank != context.rank || topology.size != context.size) {
    throw Error(Code::kInvalidArgument,
                "[mpi] this process is rank " + std::to_string(topology.rank) + " of " +
                    std::to_string(topology.size) + " to " + session.version() +
                    " (expected rank " + std::to_string(context.rank) + " of " +
                    std::to_string(context.size) +
                    "); start the job with the mpirun of this MPI, or set AIACC_ENGINE=tcp");
  }
  for (const MpiLane& lane : session.acquire(context.lanes + 1)) {
    channels_.push_back(std::make_unique<Lane>(session, lane, context.spin_us, cancellation_));
  }
}

MpiEngine::~MpiEngine() = default;

void MpiEngine::abort(const Status& status) noexcept {
  cancellation_.set(status);
  for (const auto& lane : channels_) {
    lane->wake();
  }
}

template <class Operation>
void MpiEngine::run(int lane, Operation operation) {
  AIACC_CHECK(lane >= 0 && lane <= lanes_);
  cancellation_.check();
  try {
    operation(*channels_[static_cast<std::size_t>(lane)]);
  } catch (...) {
    abort(current_exception_status());
    cancellation_.check();  // the first failure is the cause, not this one
  }
}

void MpiEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  AIACC_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  run(lane, [&](Lane& on) {
    if (count > 0) {
      on.all_reduce(send, recv, count, reduction);
    }
  });
}

void MpiEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  AIACC_CHECK(root >= 0 && root < session_.topology().size);
  run(lane, [&](Lane& on) { on.broadcast(buffer, bytes, root); });
}

void MpiEngine::all_gather(int lane,
                           const void* send,
                           void* recv,
                           const std::vector<std::size_t>& bytes_of) {
  AIACC_CHECK(bytes_of.size() == static_cast<std::size_t>(session_.topology().size));
  run(lane, [&](Lane& on) { on.all_gather(send, recv, bytes_of); });
}

}  // namespace aiacc
