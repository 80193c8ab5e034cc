#include "csrc/engines/mpi/mpi_engine.h"

#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/engines/members.h"

namespace aiacc {
namespace {

/// Throws if MPI numbers the ranks differently.
MpiCommunicator& checked_world(MpiSession& session, const EngineContext& context) {
  const MpiCommunicator& world = session.world();
  if (world.rank() != context.rank || world.size() != context.size) {
    throw Error(Code::kInvalidArgument,
                "[mpi] this process is rank " + std::to_string(world.rank()) + " of " +
                    std::to_string(world.size()) + " to " + session.version() + " (expected rank " +
                    std::to_string(context.rank) + " of " + std::to_string(context.size) +
                    "); start the job with the mpirun of this MPI, or set AIACC_ENGINE=tcp");
  }
  return session.world();
}

}  // namespace

MpiEngine::MpiEngine(MpiSession& session, const EngineContext& context)
    : MpiEngine(session,
                checked_world(session, context),
                all_ranks(context.size),
                context.lanes,
                context.spin_us,
                {}) {}

MpiEngine::MpiEngine(MpiSession& session,
                     const EngineContext& context,
                     const std::vector<int>& ranks,
                     std::uint32_t split_id,
                     const Cancellation& interrupt)
    : MpiEngine(session,
                session.join(ranks, split_id, interrupt),
                ranks,
                context.lanes,
                context.spin_us,
                [&] { interrupt.check(); }) {}

MpiEngine::MpiEngine(MpiSession& session,
                     MpiCommunicator& communicator,
                     std::vector<int> ranks,
                     int lanes,
                     double spin_us,
                     const WaitCheck& interrupt)
    : session_(session),
      communicator_(communicator),
      ranks_(std::move(ranks)),
      lanes_(lanes),
      spin_us_(spin_us) {
  for (const MpiLane& lane : communicator.acquire(lanes_of_communicator(lanes), interrupt)) {
    channels_.push_back(std::make_unique<MpiChannel>(communicator, lane, spin_us, cancellation_));
  }
  session_.enter();
}

MpiEngine::~MpiEngine() {
  channels_.clear();
  session_.leave(communicator_);
}

LaneWait MpiEngine::waits(int lane) const {
  return channels_.empty() ? LaneWait{} : channels_.at(static_cast<std::size_t>(lane))->waits();
}

void MpiEngine::abort(const Status& status) noexcept { cancellation_.set(status); }

template <class Operation>
void MpiEngine::run(int lane, Operation operation) {
  AIACC_CHECK(lane >= 0 && lane <= lanes_);
  cancellation_.check();
  MpiLaneUse& use = communicator_.use(lane);
  try {
    operation(*channels_[static_cast<std::size_t>(lane)]);
    ++use.completed;
  } catch (...) {
    use.failed = true;
    abort(current_exception_status());
    cancellation_.check();  // the first failure is the cause, not this one
    throw;
  }
}

void MpiEngine::all_reduce(
    int lane, const void* send, void* recv, std::size_t count, const Reduction& reduction) {
  AIACC_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  run(lane, [&](MpiChannel& on) { on.all_reduce(send, recv, count, reduction); });
}

void MpiEngine::start_all_reduce(
    int lane, int ticket, void* data, std::size_t count, const Reduction& reduction) {
  AIACC_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  run(lane, [&](MpiChannel& on) { on.start_all_reduce(ticket, data, count, reduction); });
}

void MpiEngine::finish_all_reduce(int lane, int ticket) {
  run(lane, [&](MpiChannel& on) { on.finish_all_reduce(ticket); });
}

void MpiEngine::broadcast(int lane, void* buffer, std::size_t bytes, int root) {
  AIACC_CHECK(root >= 0 && root < communicator_.size());
  run(lane, [&](MpiChannel& on) { on.broadcast(buffer, bytes, root); });
}

void MpiEngine::all_gather(int lane, const void* send, void* recv, const PerRank& bytes_of) {
  AIACC_CHECK(bytes_of.size() == static_cast<std::size_t>(communicator_.size()));
  run(lane, [&](MpiChannel& on) { on.all_gather(send, recv, bytes_of); });
}

void MpiEngine::reduce_scatter(
    int lane, const void* send, void* recv, const PerRank& counts, const Reduction& reduction) {
  AIACC_CHECK(reduction.op != ReduceOp::kAverage && reduction.op != ReduceOp::kAdasum);
  AIACC_CHECK(counts.size() == ranks_.size());
  run(lane, [&](MpiChannel& on) { on.reduce_scatter(send, recv, counts, reduction); });
}

void MpiEngine::all_to_all(
    int lane, const void* send, void* recv, const PerRank& send_bytes, const PerRank& recv_bytes) {
  AIACC_CHECK(send_bytes.size() == ranks_.size() && recv_bytes.size() == ranks_.size());
  const auto own = static_cast<std::size_t>(communicator_.rank());
  AIACC_CHECK(send_bytes[own] == recv_bytes[own]);
  run(lane, [&](MpiChannel& on) { on.all_to_all(send, recv, send_bytes, recv_bytes); });
}

std::unique_ptr<Engine> MpiEngine::split(const std::vector<int>& members, std::uint32_t split_id) {
  index_among(members, communicator_.rank(), communicator_.size());
  cancellation_.check();
  std::vector<int> ranks = translated(ranks_, members);
  MpiCommunicator& communicator = session_.join(ranks, split_id, cancellation_);
  return std::unique_ptr<Engine>(new MpiEngine(
      session_, communicator, std::move(ranks), lanes_, spin_us_, [&] { cancellation_.check(); }));
}

}  // namespace aiacc
