#include "csrc/engines/mpi/mpi_session.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/base/event.h"
#include "csrc/base/log.h"
#include "csrc/engines/mpi/mpi_request.h"

namespace aiacc {
namespace {

constexpr std::chrono::microseconds kSpin{50};
/// At the end: how often to look for ranks that have died, and how long the last messages of one
/// that has ended in order may take.
constexpr std::chrono::milliseconds kLookEvery{20};
constexpr std::chrono::seconds kLastMessages{3};

/// Arguments of an all-gather that is under way.
struct Gather {
  std::vector<int> bytes_of;
  std::vector<int> offsets;
  std::string data;
};

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// What a member of a new part tells the others.
struct Offer {
  std::uint32_t fresh = kNone;  ///< the number of a new communicator, if this is the first member
  std::array<std::uint32_t, 15>
      free{};  ///< communicators with these members that have no engine, or kNone
};

struct Meeting {
  Offer mine;
  std::vector<Offer> theirs;
};

/// Identifies where process numbers are unique: a boot of a machine, and a PID namespace there.
std::string process_space() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = "";
  const ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return boot.empty() || length <= 0 ? "" : boot + std::string(space);
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
  world_ = std::make_unique<MpiCommunicator>(plugin, meet(), timeout_s);
  if (world_->size() > 1) {
    progress_ = std::make_unique<MpiProgress>(plugin, world_->handle());
  }
  plugin.forget_files();
  watch_neighbours();
}

void MpiSession::watch_neighbours() {
  const std::string space = process_space();
  for (const std::string& row : all_gather(std::to_string(getpid()) + " " + space)) {
    const std::size_t blank = row.find(' ');
    const int process = std::stoi(row.substr(0, blank));
    if (!space.empty() && row.substr(blank + 1) == space && process != getpid()) {
      const auto descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
      if (descriptor >= 0) {
        neighbours_.push_back(descriptor);
      }
    }
  }
}

bool MpiSession::neighbour_has_ended() const {
  std::vector<pollfd> entries;
  entries.reserve(neighbours_.size());
  for (const int descriptor : neighbours_) {
    entries.push_back({descriptor, POLLIN, 0});
  }
  return poll_until(entries.data(), entries.size(), {}) > 0;
}

MpiHandle MpiSession::meet() {
  auto* const world = new MpiHandle(0);  // leaked: MPI writes to it whenever all ranks have come
  MpiHandle request = 0;
  check_mpi(plugin_, plugin_.start_duplicate(plugin_.world(), world, &request), "MPI_Comm_idup");
  Spin spin(kSpin);
  wait_for_request(
      plugin_, &request, spin, deadline_check("to duplicate MPI_COMM_WORLD", timeout_s_));
  check_mpi(plugin_, plugin_.return_errors(*world), "MPI_Comm_set_errhandler");
  return *world;
}

std::vector<std::string> MpiSession::all_gather(const std::string& payload) {
  const auto size = static_cast<std::size_t>(world().size());
  const auto mine = static_cast<std::size_t>(world().rank());
  if (payload.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()) / size) {
    throw Error(Code::kInvalidArgument,
                "[mpi] all_gather of " + std::to_string(payload.size()) +
                    " bytes (expected less than 2 GiB in total)");
  }
  auto gather = std::make_shared<Gather>();
  gather->bytes_of.assign(size, 0);
  gather->bytes_of[mine] = static_cast<int>(payload.size());
  gather->bytes_of =
      world().maximum(std::move(gather->bytes_of), "to gather the sizes of what the ranks send");
  gather->offsets.assign(size, 0);
  std::partial_sum(
      gather->bytes_of.begin(), gather->bytes_of.end() - 1, gather->offsets.begin() + 1);
  gather->data.resize(static_cast<std::size_t>(gather->offsets.back()) +
                      static_cast<std::size_t>(gather->bytes_of.back()));
  std::copy(payload.begin(), payload.end(), gather->data.begin() + gather->offsets[mine]);
  MpiHandle request = 0;
  check_mpi(plugin_,
            plugin_.start_all_gather(world().handle(),
                                     gather->data.data(),
                                     gather->bytes_of.data(),
                                     gather->offsets.data(),
                                     &request),
            "MPI_Iallgatherv");
  world().wait(request, "to gather what the ranks send", gather);
  std::vector<std::string> parts;
  parts.reserve(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    parts.push_back(gather->data.substr(static_cast<std::size_t>(gather->offsets[rank]),
                                        static_cast<std::size_t>(gather->bytes_of[rank])));
  }
  return parts;
}

MpiCommunicator& MpiSession::join(const std::vector<int>& members,
                                  std::uint32_t split_id,
                                  const Cancellation& cancellation) {
  // MPI promises no more tags than 2^15. What an earlier engine left behind has other ones.
  const int tag = static_cast<int>((world().generation() * 4099u + split_id) % 32749u);
  const auto [number, is_new] = meet_members(members, tag, cancellation);
  const PartKey key{members, number};
  if (is_new) {
    const auto interrupt = [&] { cancellation.check(); };
    auto handle = std::make_shared<MpiHandle>(0);
    wait_for_call(
        plugin_,
        [&plugin = plugin_, all = world().handle(), members, tag, handle] {
          return plugin.create_group(
              all, members.data(), static_cast<int>(members.size()), tag, handle.get());
        },
        "MPI_Comm_create_group",
        deadline_check("for the other members of a process set", timeout_s_, interrupt));
    auto communicator = std::make_unique<MpiCommunicator>(plugin_, *handle, timeout_s_);
    const std::lock_guard lock(mutex_);
    parts_[key] = {std::move(communicator), true};
  }
  const std::lock_guard lock(mutex_);
  return *parts_.at(key).communicator;
}

void MpiSession::enter() noexcept {
  const std::lock_guard lock(mutex_);
  if (++engines_ == 1 && progress_ != nullptr) {
    progress_->rest(false);
  }
}

void MpiSession::leave(const MpiCommunicator& communicator) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [key, part] : parts_) {
    part.in_use = part.in_use && part.communicator.get() != &communicator;
  }
  if (--engines_ == 0 && progress_ != nullptr) {
    progress_->rest(true);
  }
}

/// Waits for all members, which agree on a communicator that none of them uses, or on a number for
/// a new one. It is this call's from now on.
std::pair<std::uint32_t, bool> MpiSession::meet_members(const std::vector<int>& members,
                                                        int tag,
                                                        const Cancellation& cancellation) {
  auto meeting = std::make_shared<Meeting>();
  meeting->theirs.resize(members.size());
  // Calls for the same members may overlap: what one has offered, no other may.
  Offer& mine = meeting->mine;
  mine.fresh = reserve_parts(members, mine.free.data(), mine.free.size());
  const MpiHandle all = world().handle();
  const auto bytes = static_cast<int>(sizeof(Offer));
  std::vector<MpiHandle> requests;
  try {
    for (std::size_t i = 0; i < members.size(); ++i) {
      check_mpi(plugin_,
                plugin_.start_receive(
                    all, &meeting->theirs[i], bytes, members[i], tag, &requests.emplace_back()),
                "MPI_Irecv");
      check_mpi(plugin_,
                plugin_.start_send(all, &mine, bytes, members[i], tag, &requests.emplace_back()),
                "MPI_Isend");
    }
    const auto check = deadline_check(
        "for the other members of a process set", timeout_s_, [&] { cancellation.check(); });
    Spin spin(kSpin);
    for (MpiHandle& request : requests) {
      wait_for_request(plugin_, &request, spin, check);
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    abandoned_.push_back(meeting);  // MPI may still write there
    throw;
  }
  std::uint32_t agreed = kNone;
  for (const std::uint32_t number : mine.free) {
    const bool everywhere =
        std::all_of(meeting->theirs.begin(), meeting->theirs.end(), [&](const Offer& theirs) {
          return std::find(theirs.free.begin(), theirs.free.end(), number) != theirs.free.end();
        });
    agreed = everywhere ? std::min(agreed, number) : agreed;
  }
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t number : mine.free) {
    if (number != kNone && number != agreed) {
      parts_.at({members, number}).in_use = false;
    }
  }
  const bool is_new = agreed == kNone;
  return {is_new ? meeting->theirs.front().fresh : agreed, is_new};
}

/// Fills `numbers` with those of communicators that have these members and no engine, which are in
/// use from now on; the rest with kNone. Returns a number that it has not returned before.
std::uint32_t MpiSession::reserve_parts(const std::vector<int>& members,
                                        std::uint32_t* numbers,
                                        std::size_t most) {
  std::fill(numbers, numbers + most, kNone);
  const std::lock_guard lock(mutex_);
  for (auto& [key, part] : parts_) {
    if (most > 0 && !part.in_use && key.first == members) {
      part.in_use = true;
      *numbers++ = key.second;
      --most;
    }
  }
  return next_number_++;
}

void MpiSession::stop_progress() noexcept {
  if (progress_ != nullptr) {
    progress_->stop();
  }
}

void MpiSession::finish() noexcept {
  if (!ours_ || plugin_.is_finalized() != 0) {
    return;
  }
  // What was given up in a part, or by all ranks before they met again, does not delay
  // MPI_Finalize; a rank that leaves without it would end the others.
  if (world().broken() || calls_under_way() > 0) {
    return;  // MPI_Finalize would wait for ranks that may have died
  }
  auto next_look = Clock::now();
  auto last_moment = Clock::time_point::max();
  const auto check = [&] {
    const auto now = Clock::now();
    if (now >= last_moment) {
      throw Error(
          Code::kPeerLost,
          "[mpi] another rank has ended without MPI_Finalize: this one leaves MPI as it is");
    }
    if (now >= next_look) {
      next_look = now + kLookEvery;
      if (last_moment == Clock::time_point::max() && neighbour_has_ended()) {
        last_moment = now + kLastMessages;
      }
    }
  };
  try {
    Spin spin(kSpin);
    MpiHandle request = 0;
    check_mpi(plugin_, plugin_.start_barrier(world().handle(), &request), "MPI_Ibarrier");
    wait_for_request(plugin_, &request, spin, check);
    check_mpi(plugin_, plugin_.finalize(), "MPI_Finalize");
  } catch (const std::exception& error) {
    AIACC_LOG(kWarning) << error.what();
  }
}

}  // namespace aiacc
