// How the communicators of NcclEngine begin, are watched, and end.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "csrc/base/log.h"
#include "csrc/control/tcp/connector.h"
#include "csrc/engines/nccl/nccl_engine.h"
#include "csrc/engines/nccl/nccl_settings.h"
#include "csrc/planning/spreading_tree.h"

namespace aiacc {
namespace {

/// How long `abort` waits for a thread that is in NCCL, where calls do not block.
constexpr std::chrono::seconds kPatience{1};

constexpr std::chrono::microseconds kLongestPause{1000};

/// Another rank's death shows as this before the control plane has found it out.
Code code_of(NcclResult result) {
  return result == kNcclRemoteError || result == kNcclSystemError ? Code::kPeerLost : Code::kEngine;
}

void throw_if_failed(const NcclApi& api, NcclResult result, const char* call) {
  try {
    check_nccl(api, result, call);
  } catch (const Error& error) {
    throw Error(code_of(result), error.what());
  }
}

/// Sleeps for longer from time to time, unless it is cancelled.
class Pause {
 public:
  explicit Pause(const Cancellation& cancellation) : cancellation_(cancellation) {}
  void operator()() {
    pollfd wait{cancellation_.fd(), POLLIN, 0};
    poll_until(&wait, 1, Clock::now() + next_);
    next_ = std::min(2 * next_, kLongestPause);
  }

 private:
  const Cancellation& cancellation_;
  std::chrono::microseconds next_{2};
};

/// Waits for a rank that may be busy with something else; who abandons it, by what `mark` shows,
/// cancels.
void receive(Socket& socket,
             void* data,
             std::size_t bytes,
             int from,
             const Cancellation& cancellation,
             WaitMark& mark) {
  auto* cursor = static_cast<std::byte*>(data);
  while (bytes > 0) {
    cancellation.check();
    const std::size_t got = socket.recv_some(cursor, bytes, "rank " + std::to_string(from));
    cursor += got;
    bytes -= got;
    if (got > 0) {
      mark.moves();
    } else {
      mark.sleeps(Clock::now(), from);
      pollfd wait[] = {{socket.fd(), POLLIN, 0}, {cancellation.fd(), POLLIN, 0}};
      poll_until(wait, 2, Clock::time_point::max());
    }
  }
}

}  // namespace

/// The ids of one communicator for each lane. The first member makes them, and they are passed on
/// along a tree once every member has sent word up that it has come: a communicator has a deadline
/// to come up, a rank that is busy has none.
std::vector<NcclUniqueId> NcclEngine::agree_on_ids() {
  std::vector<NcclUniqueId> ids(static_cast<std::size_t>(lanes()));
  const std::size_t bytes = ids.size() * sizeof(NcclUniqueId);
  const bool first = context_.rank == 0;
  if (first) {
    for (NcclUniqueId& id : ids) {
      AIACC_NCCL_CHECK(nccl_, get_unique_id, &id);
    }
  }
  if (context_.size == 1) {
    return ids;
  }
  std::vector<ChannelSpec> specs;
  const auto add = [&](int member, bool connect) {
    specs.push_back(
        {members_[static_cast<std::size_t>(member)], ChannelKind::kIds, 0, connect, split_id_});
  };
  if (!first) {
    add(spreading_parent(context_.rank), false);
  }
  for (const int child : spreading_children(context_.rank, context_.size)) {
    add(child, true);
  }
  std::vector<Socket> sockets =
      context_.connector->establish_in_unit(specs, cancellation_.fd(), &mark_);
  // Small enough for the kernel at the other end to take it, whatever the rank does there.
  const auto send = [&](std::size_t to, const void* data, std::size_t count) {
    const std::string peer = "rank " + std::to_string(specs[to].peer);
    sockets[to].send_all(data, count, peer, Clock::now() + duration_of(context_.connect_timeout_s));
  };
  const std::size_t children = first ? 0 : 1;
  std::uint8_t here = 1;
  for (std::size_t i = children; i < sockets.size(); ++i) {
    receive(sockets[i], &here, sizeof here, specs[i].peer, cancellation_, mark_);
  }
  if (!first) {
    send(0, &here, sizeof here);
    receive(sockets[0], ids.data(), bytes, specs[0].peer, cancellation_, mark_);
  }
  for (std::size_t i = children; i < sockets.size(); ++i) {
    send(i, ids.data(), bytes);
  }
  return ids;
}

void NcclEngine::connect() {
  if (!comms_.empty()) {
    return;  // Only this thread fills it.
  }
  cancellation_.check();
  try {
    const std::vector<NcclUniqueId> ids = agree_on_ids();
    {
      const std::lock_guard lock(mutex_);
      comms_.resize(ids.size());
    }
    // One after another: many that come up at once have been seen to hang (NVIDIA/nccl#2379).
    for (std::size_t lane = 0; lane < ids.size(); ++lane) {
      join(lane, ids[lane]);
    }
  } catch (...) {
    cancellation_.set(current_exception_status());  // Nobody uses what is there by half.
    throw;
  }
}

/// Also takes the lane's buffers, so that no step has to.
void NcclEngine::join(std::size_t lane, const NcclUniqueId& id) {
  const std::lock_guard lock(mutex_);
  cancellation_.check();
  NcclConfig config =
      communicator_settings(nccl_.version, lanes(), devices_->attribute(kCudaMultiprocessors));
  NcclComm& comm = comms_[lane].comm;
  const NcclResult result = nccl_.comm_init(&comm, context_.size, id, context_.rank, &config);
  settle(comm, result, "ncclCommInitRankConfig");
  for (std::size_t turn = 0; turn < NcclDevice::kRing; ++turn) {
    const int number = static_cast<int>(lane);
    register_buffer(number, device_->buffer(number, context_.unit_bytes).memory);
  }
}

/// Waits until a call on `comm` that returned `result` is over. With the lock.
void NcclEngine::settle(NcclComm comm, NcclResult result, const char* call) {
  const auto deadline = Clock::now() + duration_of(context_.connect_timeout_s);
  Pause pause(cancellation_);
  while (result == kNcclInProgress) {
    pause();
    cancellation_.check();
    if (Clock::now() >= deadline) {
      throw Error(Code::kTimeout,
                  std::string("[nccl] ") + call + " was not over after " +
                      std::to_string(context_.connect_timeout_s) +
                      " s; is a rank stuck? AIACC_CONNECT_TIMEOUT_S is the limit, NCCL_DEBUG=INFO "
                      "says more");
    }
    throw_if_failed(nccl_, nccl_.comm_async_error(comm, &result), "ncclCommGetAsyncError");
  }
  throw_if_failed(nccl_, result, call);
}

void NcclEngine::check() {
  cancellation_.check();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return;  // Whoever is in NCCL looks itself.
  }
  for (const Lane& lane : comms_) {
    NcclResult state = kNcclSuccess;
    if (lane.comm != nullptr) {
      throw_if_failed(nccl_, nccl_.comm_async_error(lane.comm, &state), "ncclCommGetAsyncError");
      if (state != kNcclInProgress) {
        throw_if_failed(nccl_, state, "an operation on the GPU");
      }
    }
  }
}

void NcclEngine::abort(const Status& status) noexcept {
  cancellation_.set(status);
  try {
    // Whoever is in NCCL leaves now; if not, aborting is what NCCL allows meanwhile.
    std::unique_lock lock(mutex_, std::try_to_lock);
    for (const auto limit = Clock::now() + kPatience; !lock && Clock::now() < limit;) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      lock.try_lock();
    }
    if (comms_.empty()) {
      return;
    }
    const Device::Scope scope(*device_->device());
    for (Lane& lane : comms_) {
      if (lane.comm != nullptr) {
        nccl_.comm_abort(std::exchange(lane.comm, nullptr));
      }
    }
  } catch (const std::exception& error) {
    AIACC_LOG(kWarning) << "[nccl] abort: " << error.what();
  }
}

/// Ends the communicators in order; false if that cannot be.
bool NcclEngine::finish() noexcept {
  try {
    cancellation_.check();
    const auto deadline = Clock::now() + duration_of(context_.peer_timeout_s);
    // Not until the streams are empty: other engines go on with them.
    for (int lane = 0; lane < lanes(); ++lane) {
      const Mark last = device_->device()->record(stream(lane));
      Pause pause(cancellation_);
      while (!device_->device()->reached(last)) {
        if (Clock::now() >= deadline) {
          return false;
        }
        pause();
      }
    }
    for (Lane& lane : comms_) {
      for (const auto& [memory, registration] : lane.registrations) {
        if (registration != nullptr) {
          nccl_.comm_deregister(lane.comm, registration);
        }
      }
      settle(lane.comm, nccl_.comm_finalize(lane.comm), "ncclCommFinalize");
      // May go on in the background; the handle is none any longer.
      nccl_.comm_destroy(std::exchange(lane.comm, nullptr));
    }
  } catch (const std::exception& error) {
    AIACC_LOG(kDebug) << "[nccl] " << error.what();
    return false;
  }
  return true;
}

NcclEngine::~NcclEngine() {
  if (comms_.empty()) {
    return;
  }
  try {
    const Device::Scope scope(*device_->device());
    if (finish()) {
      return;
    }
  } catch (const Error&) {
    return;  // The driver is shutting down.
  }
  abort({Code::kShutdown, "[nccl] the engine has ended"});
  quiesce(Clock::now() + duration_of(context_.peer_timeout_s));
}

}  // namespace aiacc
