#include "csrc/engines/mpi/mpi_communicator.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "csrc/base/dtype.h"
#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "csrc/engines/mpi/mpi_request.h"

namespace aiacc {
namespace {

constexpr std::chrono::microseconds kSpin{50};
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;
/// An all-to-all has a piece for and of every rank in it.
constexpr std::size_t kMinStagingPerRank = 64;
/// Counts of operations are compared without their upper bits.
constexpr unsigned kCountMask = 0x3fffffff;

}  // namespace

MpiCommunicator::MpiCommunicator(const MpiPlugin& plugin, MpiHandle handle, double timeout_s)
    : plugin_(plugin), timeout_s_(timeout_s), setup_(handle) {
  check_mpi(plugin, plugin.rank(setup_, &rank_), "MPI_Comm_rank");
  check_mpi(plugin, plugin.size(setup_, &size_), "MPI_Comm_size");
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
  return {lanes_.begin(), lanes_.begin() + count};
}

void MpiCommunicator::drop_lanes(const std::vector<int>& state) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const bool failed = state[3 * i + 1] != 0;
    const bool in_step = state[3 * i + 2] == -state[3 * i + 3];
    if (in_step && !failed) {
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
    memory_[i].give_up();
  }
  lanes_.resize(kept);
  uses_.resize(kept);
  memory_.resize(kept);
}

void MpiCommunicator::add_lanes(std::size_t count, const WaitCheck& interrupt) {
  std::vector<Pages> memory = make_memory(count - lanes_.size(), interrupt);
  // One after the other: MPICH deals its network interfaces out in the order of creation, so lanes
  // that were made in a row have one each, as far as there are enough.
  for (Pages& pages : memory) {
    lanes_.push_back({duplicate(interrupt), pages.data(), pages.size()});
    memory_.push_back(std::move(pages));
    uses_.push_back(std::make_unique<MpiLaneUse>());
  }
}

std::vector<Pages> MpiCommunicator::make_memory(std::size_t lanes, const WaitCheck& interrupt) {
  const std::size_t bytes =
      std::max(kStagingBytes, kMinStagingPerRank * static_cast<std::size_t>(size_));
  std::vector<Pages> memory;
  std::string problem;
  try {
    for (std::size_t i = 0; i < lanes; ++i) {
      memory.emplace_back(bytes);
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  if (maximum({problem.empty() ? 0 : 1}, "to make memory", interrupt)[0] != 0) {
    throw Error(Code::kEngine,
                problem.empty() ? "[mpi] another rank has no memory for " + std::to_string(lanes) +
                                      " lanes; see its log, or lower AIACC_LANES"
                                : problem);
  }
  return memory;
}

MpiHandle MpiCommunicator::duplicate(const WaitCheck& interrupt) {
  auto made = std::make_shared<MpiHandle>(0);
  try {
    wait_for_call(
        plugin_,
        [&plugin = plugin_, setup = setup_, made] { return plugin.duplicate(setup, made.get()); },
        "MPI_Comm_dup",
        deadline_check("for the other ranks to make a communicator", timeout_s_, interrupt));
  } catch (...) {
    failed_ = true;  // the other ranks may be waiting inside MPI for what failed here
    throw;
  }
  return *made;
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
