#include "tests/cpp/support/fakes/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

FakeNccl* instance = nullptr;

}  // namespace

FakeNccl::FakeNccl(FakeCuda& cuda, int version) : cuda_(cuda) {
  AIACC_CHECK(instance == nullptr);
  instance = this;
  api_.version = version;
  fill_table();
  fill_collectives();
  if (version < nccl_version_code(2, 31, 0)) {
    api_.all_reduce_config = nullptr;
  }
}

FakeNccl::~FakeNccl() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  cuda_.release();
  cuda_.drain();
  instance = nullptr;
}

FakeNccl& FakeNccl::self() {
  AIACC_CHECK(instance != nullptr);
  return *instance;
}

FakeNccl::Group& FakeNccl::group() {
  thread_local Group open;
  return open;
}

NcclResult FakeNccl::complain(NcclResult result, const std::string& what) {
  if (misuses_++ == 0) {
    complaint_ = what;
  }
  return result;
}

std::string FakeNccl::complaint() {
  const std::lock_guard lock(mutex_);
  return complaint_;
}

void FakeNccl::break_all_with(NcclResult error) {
  const std::lock_guard lock(mutex_);
  for (const auto& comm : comms_) {
    comm->error = error;
  }
}

std::vector<int> FakeNccl::issued(int device) {
  const std::lock_guard lock(mutex_);
  return devices_[device].worlds;
}

int FakeNccl::preferred(const std::string& algorithm) {
  const std::lock_guard lock(mutex_);
  return preferred_[algorithm];
}

std::size_t FakeNccl::issuing_threads(int device) {
  const std::lock_guard lock(mutex_);
  return devices_[device].threads.size();
}

/// Null for what is no communicator any longer.
FakeNccl::Comm* FakeNccl::find(NcclComm handle) {
  for (const auto& comm : comms_) {
    if (reinterpret_cast<NcclComm>(comm.get()) == handle && !comm->destroyed) {
      return comm.get();
    }
  }
  return nullptr;
}

NcclResult FakeNccl::init(
    NcclComm* out, int ranks, const NcclUniqueId& id, int rank, NcclConfig* config) {
  const std::lock_guard lock(mutex_);
  CudaDevice device = 0;
  if (cuda_.driver().context_device(&device) != kCudaSuccess) {
    return complain(kNcclInvalidUsage, "comm_init without a current context");
  }
  if (config->size < 2 * sizeof(std::size_t) || config->magic != kNcclMagic ||
      config->blocking != 0 || rank < 0 || rank >= ranks) {
    return complain(kNcclInvalidArgument, "comm_init with a bad config or rank");
  }
  int number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  auto& world = worlds_[number];
  if (world == nullptr) {
    world = std::make_unique<World>();
    world->number = number;
    world->size = ranks;
    world->members.resize(static_cast<std::size_t>(ranks));
  }
  if (world->size != ranks || world->members[static_cast<std::size_t>(rank)] != nullptr) {
    return complain(kNcclInvalidUsage, "two ranks of one number, or sizes that differ");
  }
  comms_.push_back(std::make_unique<Comm>());
  Comm* comm = comms_.back().get();
  comm->world = world.get();
  comm->rank = rank;
  comm->device = device;
  comm->polls = polls_;
  world->members[static_cast<std::size_t>(rank)] = comm;
  ++world->joined;
  ++alive_;
  *out = reinterpret_cast<NcclComm>(comm);
  changed_.notify_all();
  return kNcclInProgress;
}

NcclResult FakeNccl::issue(NcclComm handle, CudaStream stream, Call call) {
  Comm* comm = nullptr;
  {
    const std::lock_guard lock(mutex_);
    comm = find(handle);
    if (comm == nullptr || comm->aborted) {
      return complain(kNcclInvalidArgument, call.what + " on no communicator");
    }
    if (comm->world->joined < comm->world->size || comm->polls > 0) {
      return complain(kNcclInvalidUsage, call.what + " before the communicator was ready");
    }
  }
  if (group().depth > 0) {
    group().entries.push_back({comm, stream, std::move(call)});
    return kNcclSuccess;
  }
  if (!call.sends.empty() || !call.receives.empty()) {
    const std::lock_guard lock(mutex_);
    return complain(kNcclInvalidUsage, "a send or receive outside a group");
  }
  ++launches_;
  return launch(*comm, stream, std::move(call));
}

NcclResult FakeNccl::close_group() {
  Group& open = group();
  if (open.depth == 0) {
    const std::lock_guard lock(mutex_);
    return complain(kNcclInvalidUsage, "group_end without group_start");
  }
  if (--open.depth > 0) {
    return kNcclSuccess;
  }
  std::vector<Group::Entry> entries;
  for (Group::Entry& entry : std::exchange(open.entries, {})) {
    // The messages of a communicator are one operation.
    const bool messages = !entry.call.sends.empty() || !entry.call.receives.empty();
    if (messages && !entries.empty() && entries.back().comm == entry.comm &&
        entries.back().call.what == entry.call.what) {
      Call& call = entries.back().call;
      call.sends.insert(call.sends.end(), entry.call.sends.begin(), entry.call.sends.end());
      call.receives.insert(
          call.receives.end(), entry.call.receives.begin(), entry.call.receives.end());
    } else {
      entries.push_back(std::move(entry));
    }
  }
  NcclResult result = kNcclSuccess;
  launches_ += entries.empty() ? 0 : 1;
  for (Group::Entry& entry : entries) {
    const NcclResult launched = launch(*entry.comm, entry.stream, std::move(entry.call));
    result = result == kNcclSuccess ? launched : result;
  }
  return result;
}

NcclResult FakeNccl::launch(Comm& comm, CudaStream stream, Call call) {
  std::uint64_t number = 0;
  std::uint64_t ticket = 0;
  bool over = true;
  const int stream_device = cuda_.device_of(stream);
  {
    const std::lock_guard lock(mutex_);
    if (stream_device != comm.device) {
      return complain(kNcclInvalidUsage, "a stream of another device");
    }
    Device& device = devices_[comm.device];
    number = comm.next++;
    ticket = device.issued++;
    device.unfinished.insert(ticket);
    device.worlds.push_back(comm.world->number);
    device.threads.insert(std::this_thread::get_id());
    ++comm.pending;
    comm.polls = number == 0 ? polls_.load() : 0;  // the first operation connects
    over = comm.polls == 0;
  }
  const auto run = [this, &comm, number, ticket, call = std::move(call)] {
    meet(comm, number, ticket, call);
  };
  if (cuda_.enqueue(stream, run) != kCudaSuccess) {
    return 1;
  }
  return over ? kNcclSuccess : kNcclInProgress;
}

void FakeNccl::meet(Comm& comm, std::uint64_t number, std::uint64_t ticket, const Call& call) {
  std::unique_lock lock(mutex_);
  Device& device = devices_[comm.device];
  const auto gone = [&] { return ending_ || comm.aborted; };
  // As many as fit are resident, in the order of issue.
  changed_.wait(lock, [&] {
    return gone() ||
           std::distance(device.unfinished.begin(), device.unfinished.find(ticket)) < resident_;
  });
  if (!gone()) {
    World& world = *comm.world;
    Meeting& meeting = world.meetings[number];
    meeting.calls.resize(static_cast<std::size_t>(world.size));
    meeting.calls[static_cast<std::size_t>(comm.rank)] = call;
    if (++meeting.arrived == world.size) {
      perform(world, meeting);
      meeting.done = true;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return gone() || meeting.done; });
    if (!meeting.done) {  // the buffers are the caller's again
      meeting.calls[static_cast<std::size_t>(comm.rank)].reset();
      --meeting.arrived;
    } else if (++meeting.left == world.size) {
      world.meetings.erase(number);
    }
  }
  device.unfinished.erase(ticket);
  --comm.pending;
  changed_.notify_all();
}

}  // namespace aiacc
