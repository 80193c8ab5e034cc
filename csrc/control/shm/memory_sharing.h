#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "csrc/control/shm/memory_link.h"
#include "csrc/control/shm/shared_memory.h"
#include "csrc/control/tcp/connector.h"

namespace aiacc {

/// Who shares memory.
struct MemorySharing {
  std::vector<int> ranks;      ///< of the job, ascending, this one among them
  std::uint32_t split_id = 0;  ///< keeps their connections apart from those of other calls
  std::size_t bytes = 0;       ///< of every rank's part
  double timeout_s = 30;       ///< how long the ranks wait for each other
  int interrupt = -1;          ///< a descriptor that ends the wait when readable, unless it is -1
  std::function<void(std::byte*)> prepare;  ///< called with the own part before others have it
};

/// One piece of memory that has a part for each rank.
struct HostMemory {
  SharedMemory memory;
  std::vector<std::byte*> parts;  ///< in the order of the ranks, at multiples of a page
};

/// Makes memory for all ranks of a host. Each of them takes its own part from the system, so that
/// it lies on its NUMA node.
///
/// The lowest rank makes the memory, and passes its descriptor over a Unix socket. It tells the
/// others the name and a nonce over the job's authenticated connections, so nobody else, and no
/// other user, is given it; and in the end every rank has seen what another one wrote there. Ranks
/// that cannot reach each other so, in containers with networks of their own, learn of it.
///
/// Collective, blocks. `connector` may be null for one rank. Throws Error(kEngine) on every rank,
/// with the reason of one, if one of them cannot make or map the memory: nothing is left then.
/// Otherwise what Connector::establish throws.
HostMemory share_memory(Connector* connector, const MemorySharing& sharing);

/// How to get the memory, from the lowest rank to the others. Part of the wire format.
struct MemoryInvitation {
  std::uint64_t bytes;  ///< of the memory
  std::uint8_t nonce[16];
  char name[48];  ///< of the Unix socket, with a zero at the end
};

/// Who asks for the memory, on the Unix socket. Stands in every part as well, as a proof.
struct MemoryMark {
  std::uint8_t nonce[16];
  std::uint32_t rank;
};

/// What all ranks do with the memory. A page with the mark comes before each part.
class MemoryParts {
 public:
  explicit MemoryParts(const MemorySharing& what);

  const MemorySharing& what() const { return what_; }
  std::size_t size() const { return what_.ranks.size(); }
  std::size_t total_bytes() const { return stride_ * size(); }

  void set_nonce(const std::uint8_t (&nonce)[16]);
  MemoryMark mark_of(std::size_t index) const;

  /// Throws Error(kEngine) if the machine or a cgroup has no room for what the rank of that index
  /// is about to take.
  void require_room(std::size_t index) const;
  /// Takes and prepares the part of the rank of that index.
  void take(SharedMemory& memory, const Socket& descriptor, std::size_t index) const;
  /// Throws Error(kEngine) unless that rank's mark is seen there.
  void check(const SharedMemory& memory, std::size_t index) const;
  HostMemory divide(SharedMemory memory) const;

 private:
  std::byte* start_of(const SharedMemory& memory, std::size_t index) const {
    return memory.data() + stride_ * index;
  }

  const MemorySharing& what_;
  const std::size_t page_bytes_;
  const std::size_t stride_;
  std::uint8_t nonce_[16] = {};
};

/// The lowest rank's part of share_memory. Throws, on all ranks, the first cause.
HostMemory give_memory(const MemorySharing& sharing, std::vector<MemoryLink> links);

/// That of the rank with this index, which has a link to the lowest.
HostMemory receive_memory(const MemorySharing& sharing, std::size_t index, MemoryLink link);

}  // namespace aiacc
