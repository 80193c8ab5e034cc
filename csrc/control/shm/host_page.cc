#include "csrc/control/shm/host_page.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "csrc/base/error.h"
#include "csrc/base/event.h"

namespace aiacc {
namespace {

constexpr std::size_t kCacheLine = 64;
/// Bits of 100,000 tensors, or some 100 requests; more is rare, and comes by socket.
constexpr std::size_t kRoom = std::size_t{16} << 10;
constexpr std::uint32_t kBySocket = std::numeric_limits<std::uint32_t>::max();
/// Keeps the connections of this memory apart from those of engines, which count from 0.
constexpr std::uint32_t kSplitId = std::numeric_limits<std::uint32_t>::max();

struct Message {
  std::uint32_t bytes;
  std::uint32_t flags;
  std::byte data[kRoom];
};

struct Shown {
  alignas(kCacheLine) std::atomic<std::uint64_t> rounds;  ///< so far; the last two are there
  alignas(kCacheLine) Message messages[2];
};

}  // namespace

struct HostPage::Part {
  enum Caller : std::uint32_t { kNone, kAwake, kAsleep };

  alignas(kCacheLine) std::atomic<std::uint32_t> loop_sleeps;
  std::atomic<std::uint32_t>
      caller;  ///< that runs a round; the loop thread is not to be woken then
  std::atomic<std::uint32_t> has_share;
  char bell[64];  ///< of the loop thread: a name, with a zero at the end
  Shown boards[2];
};

HostPage::HostPage(Connector& connector, const std::vector<int>& ranks, double timeout_s)
    : ranks_(ranks) {
  const auto prepare = [this](std::byte* memory) {
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
    static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
    auto* fresh = new (memory) Part{};
    AIACC_CHECK(bell_.name().size() < sizeof fresh->bell);
    std::copy(bell_.name().begin(), bell_.name().end(), fresh->bell);
  };
  memory_ = share_memory(&connector, {ranks, kSplitId, sizeof(Part), timeout_s, -1, prepare});
  own_ = static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), connector.rank()) -
                          ranks.begin());
  for (std::byte* memory : memory_.parts) {
    auto* const part = reinterpret_cast<Part*>(memory);
    parts_.push_back(part);
    bells_.emplace_back(part->bell, strnlen(part->bell, sizeof part->bell - 1));
  }
}

bool HostPage::show(Board board, std::uint64_t round, const Bytes& message) noexcept {
  Shown& shown = part(own_).boards[board];
  Message& place = shown.messages[round % 2];
  const bool fits = message.size() <= kRoom;
  place.bytes = fits ? static_cast<std::uint32_t>(message.size()) : kBySocket;
  place.flags = flags_of(message);
  if (fits && !message.empty()) {
    std::memcpy(place.data, message.data(), message.size());
  }
  // Sequentially consistent with those who go to sleep: either they see it, or `wake` sees them.
  shown.rounds.store(round + 1, std::memory_order_seq_cst);
  const bool last = board == kResult || shares(round) == size() - 1;
  for (int index = 0; last && index < size(); ++index) {
    if (index != own_) {
      wake(index);
    }
  }
  return fits;
}

bool HostPage::shows(int index, Board board, std::uint64_t round) const noexcept {
  return part(index).boards[board].rounds.load(std::memory_order_seq_cst) > round;
}

bool HostPage::by_socket(int index, Board board, std::uint64_t round) const noexcept {
  return part(index).boards[board].messages[round % 2].bytes == kBySocket;
}

bool HostPage::read(int index, Board board, std::uint64_t round, Bytes& message) const {
  const Shown& shown = part(index).boards[board];
  const Message& place = shown.messages[round % 2];
  const std::uint32_t bytes = place.bytes;
  const std::uint64_t rounds = shown.rounds.load(std::memory_order_acquire);
  if (bytes == kBySocket) {
    return false;
  }
  if (bytes > kRoom || rounds > round + 2) {
    throw Error(Code::kPeerLost,
                "[control] rank " + std::to_string(ranks_[static_cast<std::size_t>(index)]) +
                    " shows " + std::to_string(bytes) + " bytes of round " +
                    std::to_string(rounds) + " (expected at most " + std::to_string(kRoom) +
                    " of round " + std::to_string(round + 1) + "); its memory cannot be trusted");
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(place.data);
  message.assign(data, data + bytes);
  return true;
}

int HostPage::shares(std::uint64_t round) const noexcept {
  int count = 0;
  for (int index = 0; index < size(); ++index) {
    count += index != own_ && shows(index, kShare, round) ? 1 : 0;
  }
  return count;
}

std::uint32_t HostPage::flags(std::uint64_t round) const noexcept {
  std::uint32_t all = 0;
  for (int index = 0; index < size(); ++index) {
    if (index != own_ && shows(index, kShare, round)) {
      all |= part(index).boards[kShare].messages[round % 2].flags;
    }
  }
  return all;
}

void HostPage::call_in(std::uint64_t round, bool all) noexcept {
  for (int index = 0; index < size(); ++index) {
    const bool called = all || part(index).has_share.load(std::memory_order_seq_cst) != 0;
    if (index != own_ && called && !shows(index, kShare, round)) {
      wake(index);
    }
  }
}

void HostPage::wake(int index) noexcept {
  Part& other = part(index);
  // Most often nobody sleeps: no exchange then, which would take the cache line away.
  if (other.caller.load(std::memory_order_seq_cst) != Part::kNone) {
    wake_caller(other);
  } else if (other.loop_sleeps.load(std::memory_order_seq_cst) != 0 &&
             other.loop_sleeps.exchange(0, std::memory_order_seq_cst) != 0) {
    const char ring = 1;
    // Without room for another one it rings already.
    bell_.send(bells_[static_cast<std::size_t>(index)], &ring, sizeof ring);
  }
}

void HostPage::wake_caller(Part& part) noexcept {
  std::uint32_t asleep = Part::kAsleep;
  if (part.caller.load(std::memory_order_seq_cst) == asleep &&
      part.caller.compare_exchange_strong(asleep, Part::kAwake, std::memory_order_seq_cst)) {
    futex_wake(part.caller);
  }
}

void HostPage::has_share(bool has) noexcept {
  part(own_).has_share.store(has ? 1 : 0, std::memory_order_seq_cst);
}

void HostPage::caller_runs(bool runs) noexcept {
  part(own_).caller.store(runs ? Part::kAwake : Part::kNone, std::memory_order_seq_cst);
}

void HostPage::sleeps(Runner runner, bool sleeps) noexcept {
  if (runner == Runner::kLoop) {
    part(own_).loop_sleeps.store(sleeps ? 1 : 0, std::memory_order_seq_cst);
  } else {
    part(own_).caller.store(sleeps ? Part::kAsleep : Part::kAwake, std::memory_order_seq_cst);
  }
}

void HostPage::sleep_as_caller(Clock::time_point deadline) noexcept {
  futex_wait(part(own_).caller, Part::kAsleep, deadline);
}

void HostPage::nudge() noexcept { wake_caller(part(own_)); }

}  // namespace aiacc
