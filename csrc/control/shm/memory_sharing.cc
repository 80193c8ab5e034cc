#include "csrc/control/shm/memory_sharing.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "csrc/base/error.h"
#include "csrc/control/shm/memory_room.h"

namespace aiacc {
namespace {

/// Left to the program whose ranks these are: a cgroup that has given its last memory away kills
/// them at their next allocation, where sockets would have done.
constexpr std::size_t kSpareBytes = std::size_t{64} << 20;

}  // namespace

MemoryParts::MemoryParts(const MemorySharing& what)
    : what_(what),
      page_bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
      stride_(((what.bytes - 1) / page_bytes_ + 2) * page_bytes_) {}

void MemoryParts::set_nonce(const std::uint8_t (&nonce)[16]) {
  std::memcpy(nonce_, nonce, sizeof nonce_);
}

MemoryMark MemoryParts::mark_of(std::size_t index) const {
  MemoryMark mark{};
  std::memcpy(mark.nonce, nonce_, sizeof nonce_);
  mark.rank = static_cast<std::uint32_t>(what_.ranks[index]);
  return mark;
}

void MemoryParts::require_room(std::size_t index) const {
  // The first looks for all, since the others take theirs at the same time.
  const std::size_t bytes = index == 0 ? total_bytes() : stride_;
  const MemoryRoom room = memory_room();
  if (bytes + kSpareBytes > room.bytes) {
    throw Error(Code::kEngine,
                "[shm] the ranks of this host are to share " + std::to_string(bytes >> 20) +
                    " MiB of memory, but only " + std::to_string(room.bytes >> 20) +
                    " MiB are left (" + room.limit + "), of which " +
                    std::to_string(kSpareBytes >> 20) +
                    " are the program's own; raise the limit, or lower AIACC_LANES");
  }
}

void MemoryParts::take(SharedMemory& memory, const Socket& descriptor, std::size_t index) const {
  memory.allocate(descriptor, stride_ * index, stride_);
  std::byte* start = start_of(memory, index);
  const MemoryMark mark = mark_of(index);
  std::memcpy(start, &mark, sizeof mark);
  what_.prepare(start + page_bytes_);
}

void MemoryParts::check(const SharedMemory& memory, std::size_t index) const {
  const MemoryMark mark = mark_of(index);
  if (std::memcmp(start_of(memory, index), &mark, sizeof mark) != 0) {
    throw Error(Code::kEngine,
                "[shm] what " + rank_name(what_.ranks[index]) +
                    " wrote into the shared memory is not seen by another rank");
  }
}

HostMemory MemoryParts::divide(SharedMemory memory) const {
  HostMemory result;
  for (std::size_t index = 0; index < size(); ++index) {
    result.parts.push_back(start_of(memory, index) + page_bytes_);
  }
  result.memory = std::move(memory);
  return result;
}

HostMemory share_memory(Connector* connector, const MemorySharing& sharing) {
  AIACC_CHECK(!sharing.ranks.empty() && sharing.bytes > 0);
  if (sharing.ranks.size() == 1) {
    return give_memory(sharing, {});
  }
  AIACC_CHECK(connector != nullptr);
  const auto own = std::lower_bound(sharing.ranks.begin(), sharing.ranks.end(), connector->rank());
  AIACC_CHECK(own != sharing.ranks.end() && *own == connector->rank());
  const auto index = static_cast<std::size_t>(own - sharing.ranks.begin());
  std::vector<ChannelSpec> specs;
  if (index > 0) {
    specs.push_back({sharing.ranks[0], ChannelKind::kMemory, 0, true, sharing.split_id});
  }
  for (std::size_t other = 1; index == 0 && other < sharing.ranks.size(); ++other) {
    specs.push_back({sharing.ranks[other], ChannelKind::kMemory, 0, false, sharing.split_id});
  }
  std::vector<Socket> sockets = connector->establish(specs, sharing.interrupt);
  std::vector<MemoryLink> links;
  links.reserve(sockets.size());
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    links.emplace_back(std::move(sockets[i]), specs[i].peer);
  }
  if (index == 0) {
    return give_memory(sharing, std::move(links));
  }
  return receive_memory(sharing, index, std::move(links[0]));
}

}  // namespace aiacc
