#include "csrc/engines/mpi/mpi_session.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <numeric>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/engines/mpi/mpi_request.h"
#include "csrc/engines/mpi/node_channel.h"

namespace aiacc {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kSpin{50};
/// Fits the second-level cache of a core, together with what the other rank is working on.
constexpr std::size_t kNodeSlotBytes = std::size_t{256} << 10;
/// Between nodes every rank sends one piece of a slot at a time: large enough for the network.
constexpr std::size_t kNetworkPieceBytes = std::size_t{512} << 10;
constexpr std::size_t kMaxSlotBytes = std::size_t{4} << 20;
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
constexpr std::size_t kPage = 4096;

/// Arguments of an all-gather that is under way.
struct Gather {
  std::vector<int> bytes_of;
  std::vector<int> offsets;
  std::string data;
};

std::size_t slot_bytes_for(const MpiTopology& topology) {
  if (topology.nodes == 1) {
    return kNodeSlotBytes;
  }
  return std::min(kMaxSlotBytes, kNetworkPieceBytes * static_cast<std::size_t>(topology.node_size));
}

}  // namespace

MpiSession::MpiSession(const MpiPlugin& plugin,
                       std::string version,
                       int network_lanes,
                       double timeout_s)
    : plugin_(plugin), version_(std::move(version)), timeout_s_(timeout_s) {
  if (plugin.is_finalized() != 0) {
    throw Error(Code::kEngine,
                "[mpi] MPI was finalised in this process and cannot start again; call "
                "MPI_Finalize (mpi4py.MPI.Finalize) after the last use of aiacc, or not at all");
  }
  int ours = 0;
  int multiple = 0;
  check_mpi(plugin, plugin.initialize(network_lanes, &ours, &multiple), "MPI_Init_thread");
  ours_ = ours != 0;
  if (multiple == 0) {
    throw Error(Code::kEngine,
                "[mpi] MPI was initialised for one thread (expected MPI_THREAD_MULTIPLE); "
                "initialise aiacc before MPI, or MPI with MPI_THREAD_MULTIPLE");
  }
  meet();
  find_topology();
  plugin.forget_files();
}

void MpiSession::meet() {
  const MpiHandle world = plugin_.world();
  check_mpi(plugin_, plugin_.rank(world, &topology_.rank), "MPI_Comm_rank");
  check_mpi(plugin_, plugin_.size(world, &topology_.size), "MPI_Comm_size");
  MpiHandle request = 0;
  check_mpi(plugin_, plugin_.start_duplicate(world, &setup_, &request), "MPI_Comm_idup");
  wait(request, "to duplicate MPI_COMM_WORLD");
  check_mpi(plugin_, plugin_.return_errors(setup_), "MPI_Comm_set_errhandler");
}

void MpiSession::find_topology() {
  check_mpi(plugin_, plugin_.split_by_node(setup_, &node_), "MPI_Comm_split_type");
  check_mpi(plugin_, plugin_.rank(node_, &topology_.node_rank), "MPI_Comm_rank");
  check_mpi(plugin_, plugin_.size(node_, &topology_.node_size), "MPI_Comm_size");
  const std::vector<int> extremes =
      maximum({topology_.node_size, -topology_.node_size}, "to count the ranks of every node");
  if (extremes[0] != -extremes[1]) {
    topology_.node_rank = 0;
    topology_.node_size = 1;
  }
  topology_.nodes = topology_.size / topology_.node_size;
  if (topology_.nodes > 1) {
    const int color = topology_.node_size > 1 ? topology_.node_rank : 0;
    check_mpi(plugin_, plugin_.split(setup_, color, topology_.rank, &cross_), "MPI_Comm_split");
  }
}

std::vector<std::string> MpiSession::all_gather(const std::string& payload) {
  const auto size = static_cast<std::size_t>(topology_.size);
  const auto mine = static_cast<std::size_t>(topology_.rank);
  if (payload.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()) / size) {
    throw Error(Code::kInvalidArgument,
                "[mpi] all_gather of " + std::to_string(payload.size()) +
                    " bytes (expected less than 2 GiB in total)");
  }
  auto gather = std::make_shared<Gather>();
  gather->bytes_of.assign(size, 0);
  gather->bytes_of[mine] = static_cast<int>(payload.size());
  gather->bytes_of =
      maximum(std::move(gather->bytes_of), "to gather the sizes of what the ranks send");
  gather->offsets.assign(size, 0);
  std::partial_sum(
      gather->bytes_of.begin(), gather->bytes_of.end() - 1, gather->offsets.begin() + 1);
  gather->data.resize(static_cast<std::size_t>(gather->offsets.back()) +
                      static_cast<std::size_t>(gather->bytes_of.back()));
  std::copy(payload.begin(), payload.end(), gather->data.begin() + gather->offsets[mine]);
  MpiHandle request = 0;
  check_mpi(
      plugin_,
      plugin_.start_all_gather(
          setup_, gather->data.data(), gather->bytes_of.data(), gather->offsets.data(), &request),
      "MPI_Iallgatherv");
  wait(request, "to gather what the ranks send", gather);
  std::vector<std::string> parts;
  parts.reserve(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    parts.push_back(gather->data.substr(static_cast<std::size_t>(gather->offsets[rank]),
                                        static_cast<std::size_t>(gather->bytes_of[rank])));
  }
  return parts;
}

std::vector<MpiLane> MpiSession::acquire(int count) {
  const std::vector<int> state =
      maximum({spoilt_.load() ? 1 : 0, lacks_memory(count) ? 1 : 0}, "to start the engine");
  if (state[1] != 0) {
    throw Error(Code::kEngine,
                "[mpi] /dev/shm of a host is too small for " + std::to_string(count) +
                    " lanes of " + std::to_string(topology_.node_size) +
                    " ranks; enlarge it (docker run --shm-size=1g), or lower AIACC_LANES");
  }
  if (state[0] != 0) {
    AIACC_LOG(kInfo) << "[mpi] an operation was aborted: new communicators replace the old ones";
    lanes_.clear();  // leaked: requests that MPI cannot cancel may still refer to them
    abandoned_lanes_ = true;
    spoilt_.store(false);
  }
  if (static_cast<std::size_t>(count) > lanes_.size()) {
    try {
      add_lanes(static_cast<std::size_t>(count));
    } catch (...) {
      failed_ = true;  // the other ranks may be waiting inside MPI for what failed here
      throw;
    }
  }
  for (MpiLane& lane : lanes_) {
    NodeChannel::reset(lane.segments[static_cast<std::size_t>(topology_.node_rank)]);
  }
  maximum({0}, "to start the lanes");
  return {lanes_.begin(), lanes_.begin() + count};
}

void MpiSession::add_lanes(std::size_t count) {
  const std::size_t before = lanes_.size();
  lanes_.resize(count);
  make_memory(before);
  if (topology_.nodes == 1) {
    return;
  }
  // All of one kind first: MPICH deals its network interfaces out in the order of creation, and
  // the lanes' all-reduces should each have their own.
  for (std::size_t i = before; i < count; ++i) {
    check_mpi(plugin_, plugin_.duplicate(cross_, &lanes_[i].cross), "MPI_Comm_dup");
  }
  for (std::size_t i = before; i < count; ++i) {
    check_mpi(plugin_, plugin_.duplicate(setup_, &lanes_[i].world), "MPI_Comm_dup");
    lanes_[i].staging = new std::vector<std::byte>(
        std::max(kStagingBytes, static_cast<std::size_t>(topology_.size)));
  }
}

bool MpiSession::lacks_memory(int count) const {
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

void MpiSession::make_memory(std::size_t first) {
  const std::size_t slot_bytes = slot_bytes_for(topology_);
  const std::size_t bytes = NodeChannel::segment_bytes(slot_bytes);
  const std::size_t all_bytes = bytes * (lanes_.size() - first);
  std::vector<void*> bases(static_cast<std::size_t>(topology_.node_size));
  if (topology_.node_size == 1) {
    bases[0] = ::operator new(all_bytes, std::align_val_t(kPage));
  } else {
    MpiHandle window = 0;
    check_mpi(plugin_,
              plugin_.share_memory(node_, all_bytes, bases.data(), &window),
              "MPI_Win_allocate_shared");
  }
  for (std::size_t i = first; i < lanes_.size(); ++i) {
    lanes_[i].slot_bytes = slot_bytes;
    for (void* base : bases) {
      lanes_[i].segments.push_back(static_cast<std::byte*>(base) + (i - first) * bytes);
    }
  }
}

std::vector<int> MpiSession::maximum(std::vector<int> values, const char* what) {
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
  wait(request, what, buffer);
  return *buffer;
}

void MpiSession::wait(MpiHandle request, const char* what, std::shared_ptr<void> buffers) {
  Spin spin(kSpin);
  const auto deadline = SteadyClock::now() + std::chrono::duration<double>(timeout_s_);
  try {
    if (failed_) {
      throw Error(Code::kEngine, "[mpi] the ranks did not meet in MPI before; restart the job");
    }
    wait_for_request(plugin_, &request, spin, [&] {
      if (SteadyClock::now() > deadline) {
        throw Error(Code::kTimeout,
                    std::string("[mpi] waited ") + what + " for " + std::to_string(timeout_s_) +
                        " s; a rank did not come: look for its error, or raise "
                        "AIACC_CONNECT_TIMEOUT_S");
      }
    });
  } catch (...) {
    failed_ = true;
    abandoned_.push_back(std::move(buffers));
    throw;
  }
}

void MpiSession::finish() noexcept {
  if (!ours_ || plugin_.is_finalized() != 0) {
    return;
  }
  if (failed_ || abandoned_lanes_ || spoilt_.load()) {
    return;  // MPI_Finalize would wait for requests that nobody answers
  }
  try {
    Spin spin(kSpin);
    MpiHandle request = 0;
    check_mpi(plugin_, plugin_.start_barrier(setup_, &request), "MPI_Ibarrier");
    wait_for_request(plugin_, &request, spin, [] {});
    check_mpi(plugin_, plugin_.finalize(), "MPI_Finalize");
  } catch (const std::exception& error) {
    AIACC_LOG(kWarning) << error.what();
  }
}

}  // namespace aiacc
