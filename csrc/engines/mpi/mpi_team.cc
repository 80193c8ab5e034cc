#include "csrc/engines/mpi/mpi_team.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <utility>

#include "csrc/base/dtype.h"
#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/engines/mpi/mpi_request.h"
#include "csrc/engines/mpi/node_channel.h"

namespace aiacc {
namespace {

constexpr std::chrono::microseconds kSpin{50};
/// Fits the second-level cache of a core, together with what the other rank is working on.
constexpr std::size_t kNodeSlotBytes = std::size_t{256} << 10;
/// Between nodes every rank sends one piece of a slot at a time: large enough for the network.
constexpr std::size_t kNetworkPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxSlotBytes = std::size_t{4} << 20;
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
/// An all-to-all has a piece for and of every rank in it.
constexpr std::size_t kMinStagingPerRank = 64;
constexpr std::size_t kPage = 4096;

std::size_t slot_bytes_for(const MpiTopology& topology) {
  if (topology.nodes == 1) {
    return kNodeSlotBytes;
  }
  return std::min(kMaxSlotBytes, kNetworkPieceBytes * static_cast<std::size_t>(topology.node_size));
}

}  // namespace

MpiTeam::MpiTeam(const MpiPlugin& plugin,
                 MpiHandle communicator,
                 double timeout_s,
                 const WaitCheck& interrupt)
    : plugin_(plugin), timeout_s_(timeout_s), setup_(communicator) {
  check_mpi(plugin, plugin.rank(setup_, &topology_.rank), "MPI_Comm_rank");
  check_mpi(plugin, plugin.size(setup_, &topology_.size), "MPI_Comm_size");
  find_topology(interrupt);
}

MpiHandle MpiTeam::communicator_from(MakeCommunicator make,
                                     const char* name,
                                     const WaitCheck& interrupt) {
  auto made = std::make_shared<MpiHandle>(0);
  try {
    wait_for_call(
        plugin_,
        [make = std::move(make), made] { return make(made.get()); },
        name,
        deadline_check("for the other ranks to make a communicator", timeout_s_, interrupt));
  } catch (...) {
    failed_ = true;  // the other ranks may be waiting inside MPI for what failed here
    throw;
  }
  return *made;
}

void MpiTeam::find_topology(const WaitCheck& interrupt) {
  const auto by_node = [&plugin = plugin_, setup = setup_](MpiHandle* made) {
    return plugin.split_by_node(setup, made);
  };
  node_ = communicator_from(by_node, "MPI_Comm_split_type", interrupt);
  check_mpi(plugin_, plugin_.rank(node_, &topology_.node_rank), "MPI_Comm_rank");
  check_mpi(plugin_, plugin_.size(node_, &topology_.node_size), "MPI_Comm_size");
  const std::vector<int> extremes = maximum(
      {topology_.node_size, -topology_.node_size}, "to count the ranks of every node", interrupt);
  if (extremes[0] != -extremes[1]) {
    topology_.node_rank = 0;
    topology_.node_size = 1;
  }
  topology_.nodes = topology_.size / topology_.node_size;
  if (topology_.nodes > 1) {
    const int color = topology_.node_size > 1 ? topology_.node_rank : 0;
    const auto across = [&plugin = plugin_, setup = setup_, color, key = topology_.rank](
                            MpiHandle* made) { return plugin.split(setup, color, key, made); };
    cross_ = communicator_from(across, "MPI_Comm_split", interrupt);
  }
}

std::vector<MpiLane> MpiTeam::acquire(int count, const WaitCheck& interrupt) {
  const std::vector<int> state =
      maximum({spoilt_.load() ? 1 : 0, lacks_memory(count) ? 1 : 0, generation_ + 1},
              "to start the engine",
              interrupt);
  generation_ = state[2];
  if (state[1] != 0) {
    throw Error(Code::kEngine,
                "[mpi] /dev/shm of a host is too small for " + std::to_string(count) +
                    " lanes of " + std::to_string(topology_.node_size) +
                    " ranks; enlarge it (docker run --shm-size=1g), or lower AIACC_LANES");
  }
  if (state[0] != 0) {
    AIACC_LOG(kInfo) << "[mpi] an operation was aborted: new communicators replace the old ones";
    lanes_.clear();  // leaked: requests that MPI cannot cancel may still refer to them
    spoilt_.store(false);
  }
  if (static_cast<std::size_t>(count) > lanes_.size()) {
    add_lanes(static_cast<std::size_t>(count), interrupt);
  }
  for (MpiLane& lane : lanes_) {
    NodeChannel::reset(lane.segments[static_cast<std::size_t>(topology_.node_rank)]);
  }
  maximum({0}, "to start the lanes", interrupt);
  return {lanes_.begin(), lanes_.begin() + count};
}

void MpiTeam::add_lanes(std::size_t count, const WaitCheck& interrupt) {
  const auto copy_of = [&](MpiHandle communicator) {
    const auto duplicate = [&plugin = plugin_, communicator](MpiHandle* made) {
      return plugin.duplicate(communicator, made);
    };
    return communicator_from(duplicate, "MPI_Comm_dup", interrupt);
  };
  const std::size_t before = lanes_.size();
  lanes_.resize(count);
  make_memory(before, interrupt);
  if (topology_.nodes == 1) {
    return;
  }
  // All of one kind first: MPICH deals its network interfaces out in the order of creation, and
  // the lanes' all-reduces should each have their own.
  for (std::size_t i = before; i < count; ++i) {
    lanes_[i].cross = copy_of(cross_);
  }
  for (std::size_t i = before; i < count; ++i) {
    lanes_[i].world = copy_of(setup_);
    lanes_[i].staging = new std::vector<std::byte>(
        std::max(kStagingBytes, kMinStagingPerRank * static_cast<std::size_t>(topology_.size)));
  }
}

bool MpiTeam::lacks_memory(int count) const {
  const std::size_t have = spoilt_.load() ? 0 : lanes_.size();
  const auto want = static_cast<std::size_t>(count);
  struct statvfs system{};
  if (topology_.node_size == 1 || want <= have || statvfs("/dev/shm", &system) != 0) {
    return false;
  }
  const std::size_t bytes = NodeChannel::segment_bytes(slot_bytes_for(topology_)) * (want - have) *
                            static_cast<std::size_t>(topology_.node_size);
  return static_cast<std::size_t>(system.f_bavail) * system.f_frsize < bytes;
}

void MpiTeam::make_memory(std::size_t first, const WaitCheck& interrupt) {
  const std::size_t slot_bytes = slot_bytes_for(topology_);
  const std::size_t bytes = NodeChannel::segment_bytes(slot_bytes);
  const std::size_t all_bytes = bytes * (lanes_.size() - first);
  auto shared = std::make_shared<std::vector<void*>>(static_cast<std::size_t>(topology_.node_size));
  std::vector<void*>& bases = *shared;
  if (topology_.node_size == 1) {
    bases[0] = ::operator new(all_bytes, std::align_val_t(kPage));
  } else {
    const auto allocate = [&plugin = plugin_, node = node_, all_bytes, shared](MpiHandle* window) {
      return plugin.share_memory(node, all_bytes, shared->data(), window);
    };
    communicator_from(allocate, "MPI_Win_allocate_shared", interrupt);
  }
  for (std::size_t i = first; i < lanes_.size(); ++i) {
    lanes_[i].slot_bytes = slot_bytes;
    for (void* base : bases) {
      lanes_[i].segments.push_back(static_cast<std::byte*>(base) + (i - first) * bytes);
    }
  }
}

std::vector<int> MpiTeam::maximum(std::vector<int> values,
                                  const char* what,
                                  const WaitCheck& interrupt) {
  auto buffer = std::make_shared<std::vector<int>>(std::move(values));
  MpiHandle request = 0;
  check_mpi(plugin_,
            plugin_.start_all_reduce(setup_,
                                     buffer->data(),
                                     static_cast<int>(buffer->size()),
                                     static_cast<int>(DataType::kInt32),
                                     static_cast<int>(ReduceOp::kMax),
                                     &request),
            "MPI_Iallreduce");
  wait(request, what, buffer, interrupt);
  return *buffer;
}

void MpiTeam::wait(MpiHandle request,
                   const char* what,
                   std::shared_ptr<void> buffers,
                   const WaitCheck& interrupt) {
  Spin spin(kSpin);
  try {
    if (failed_) {
      throw Error(Code::kEngine, "[mpi] the ranks did not meet in MPI before; restart the job");
    }
    wait_for_request(plugin_, &request, spin, deadline_check(what, timeout_s_, interrupt));
  } catch (...) {
    failed_ = true;
    abandoned_.push_back(std::move(buffers));
    throw;
  }
}

}  // namespace aiacc
