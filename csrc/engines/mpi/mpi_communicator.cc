#include "csrc/engines/mpi/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "csrc/base/dtype.h"
#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/engines/mpi/mpi_request.h"
#include "csrc/engines/shm/shm_channel.h"

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
/// Of the names of memory that ranks of a host share.
constexpr const char* kSharedPrefix = "aiacc-";
/// Counts of operations are compared without their upper bits.
constexpr unsigned kCountMask = 0x3fffffff;

std::size_t slot_bytes_for(const MpiTopology& topology) {
  if (topology.nodes == 1) {
    return kNodeSlotBytes;
  }
  return std::min(kMaxSlotBytes, kNetworkPieceBytes * static_cast<std::size_t>(topology.node_size));
}

}  // namespace

MpiCommunicator::MpiCommunicator(const MpiPlugin& plugin,
                                 MpiHandle handle,
                                 double timeout_s,
                                 const WaitCheck& interrupt)
    : plugin_(plugin), timeout_s_(timeout_s), setup_(handle) {
  check_mpi(plugin, plugin.rank(setup_, &topology_.rank), "MPI_Comm_rank");
  check_mpi(plugin, plugin.size(setup_, &topology_.size), "MPI_Comm_size");
  find_topology(interrupt);
}

MpiHandle MpiCommunicator::communicator_from(MakeCommunicator make,
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

void MpiCommunicator::find_topology(const WaitCheck& interrupt) {
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

std::vector<MpiLane> MpiCommunicator::acquire(int count, const WaitCheck& interrupt) {
  std::vector<int> state{generation_ + 1};
  for (const auto& use : uses_) {
    const auto completed = static_cast<int>(use->completed & kCountMask);
    state.insert(state.end(), {use->failed ? 1 : 0, completed, -completed});
  }
  state = maximum(std::move(state), "to start the engine", interrupt);
  generation_ = state[0];
  drop_lanes(state);
  spoilt_.store(false);
  if (static_cast<std::size_t>(count) > lanes_.size()) {
    add_lanes(static_cast<std::size_t>(count), interrupt);
  }
  for (MpiLane& lane : lanes_) {
    ShmChannel::reset(lane.segments[static_cast<std::size_t>(topology_.node_rank)]);
  }
  maximum({0}, "to start the lanes", interrupt);
  return {lanes_.begin(), lanes_.begin() + count};
}

void MpiCommunicator::drop_lanes(const std::vector<int>& state) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const bool failed = state[3 * i + 1] != 0;
    const bool in_step = state[3 * i + 2] == -state[3 * i + 3];
    // Within a node MPI has no part in the lanes.
    if (topology_.nodes == 1 || (in_step && !failed)) {
      std::swap(lanes_[kept], lanes_[i]);
      std::swap(uses_[kept], uses_[i]);
      std::swap(memory_[kept], memory_[i]);
      *uses_[kept] = {};
      ++kept;
    }
  }
  if (kept == lanes_.size()) {
    return;
  }
  AIACC_LOG(kInfo) << "[mpi] an operation was aborted: new communicators replace those of "
                   << lanes_.size() - kept << " lanes";
  // MPI cannot cancel: it keeps the communicators, and may still write to what a request was given.
  for (std::size_t i = kept; i < lanes_.size(); ++i) {
    for (Pages& pages : memory_[i]) {
      pages.give_up();
    }
  }
  lanes_.resize(kept);
  uses_.resize(kept);
  memory_.resize(kept);
}

void MpiCommunicator::add_lanes(std::size_t count, const WaitCheck& interrupt) {
  const auto copy_of = [&](MpiHandle handle) {
    const auto duplicate = [&plugin = plugin_, handle](MpiHandle* made) {
      return plugin.duplicate(handle, made);
    };
    return communicator_from(duplicate, "MPI_Comm_dup", interrupt);
  };
  std::vector<MpiLane> added(count - lanes_.size());
  std::vector<std::vector<Pages>> memory = make_memory(added, interrupt);
  if (topology_.nodes > 1) {
    // All of one kind first: MPICH deals its network interfaces out in the order of creation, and
    // the lanes' all-reduces should each have their own.
    for (MpiLane& lane : added) {
      lane.cross = copy_of(cross_);
    }
    for (MpiLane& lane : added) {
      lane.world = copy_of(setup_);
    }
  }
  for (std::size_t i = 0; i < added.size(); ++i) {
    lanes_.push_back(std::move(added[i]));
    memory_.push_back(std::move(memory[i]));
    uses_.push_back(std::make_unique<MpiLaneUse>());
  }
}

std::vector<std::vector<Pages>> MpiCommunicator::make_memory(std::vector<MpiLane>& lanes,
                                                             const WaitCheck& interrupt) {
  const std::size_t slot_bytes = slot_bytes_for(topology_);
  const std::size_t bytes = ShmChannel::segment_bytes(slot_bytes);
  const auto mine = static_cast<std::size_t>(topology_.node_rank);
  const auto ranks = static_cast<std::size_t>(topology_.node_size);
  if (mine == 0 && ranks > 1) {
    Pages::sweep(kSharedPrefix);
  }
  const std::string node = name_of_node(interrupt);
  const auto name = [&](std::size_t lane, std::size_t rank) {
    return node + "-" + std::to_string(lane) + "-" + std::to_string(rank);
  };
  std::vector<std::vector<Pages>> memory(lanes.size());
  std::string problem;
  // In two steps, after each of which all ranks know whether all could take it.
  const auto everywhere = [&](const auto& step) {
    try {
      for (std::size_t i = 0; i < lanes.size() && problem.empty(); ++i) {
        step(i);
      }
    } catch (const Error& error) {
      problem = error.what();
    }
    const int failed = maximum({problem.empty() ? 0 : 1}, "to make memory", interrupt)[0];
    return failed == 0;
  };
  const bool made = everywhere([&](std::size_t i) {
    memory[i].resize(ranks);
    memory[i][mine] = ranks == 1 ? Pages::own(bytes) : Pages::create(name(i, mine), bytes);
    if (topology_.nodes > 1) {
      lanes[i].staging_bytes =
          std::max(kStagingBytes, kMinStagingPerRank * static_cast<std::size_t>(topology_.size));
      lanes[i].staging = memory[i].emplace_back(Pages::own(lanes[i].staging_bytes)).data();
    }
  });
  const auto open_all = [&](std::size_t i) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (rank != mine) {
        memory[i][rank] = Pages::open(name(i, rank), bytes);
      }
      lanes[i].segments.push_back(memory[i][rank].data());
    }
    lanes[i].slot_bytes = slot_bytes;
  };
  const bool shared = made && everywhere(open_all);
  for (std::size_t i = 0; i < lanes.size() && ranks > 1; ++i) {
    Pages::remove(name(i, mine));
  }
  if (!shared) {
    throw Error(Code::kEngine,
                "[mpi] a host has no shared memory for " + std::to_string(lanes.size()) +
                    " lanes of " + std::to_string(ranks) + " ranks, " +
                    std::to_string(lanes.size() * ranks * bytes >> 20) + " MiB in /dev/shm" +
                    (problem.empty() ? "" : " (" + problem + ")") +
                    "; enlarge it (docker run --shm-size=1g), or lower AIACC_LANES");
  }
  return memory;
}

std::string MpiCommunicator::name_of_node(const WaitCheck& interrupt) {
  constexpr int kWords = 2;
  auto words = std::make_shared<std::array<unsigned, kWords>>();
  std::random_device random;
  std::generate(words->begin(), words->end(), std::ref(random));
  MpiHandle request = 0;
  check_mpi(plugin_,
            plugin_.start_broadcast(node_, words->data(), sizeof(*words), 0, &request),
            "MPI_Ibcast");
  wait(request, "to name the memory of a host", words, interrupt);
  std::ostringstream name;
  name << kSharedPrefix << std::hex << (*words)[0] << (*words)[1];
  return name.str();
}

std::vector<int> MpiCommunicator::maximum(std::vector<int> values,
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

void MpiCommunicator::wait(MpiHandle request,
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
