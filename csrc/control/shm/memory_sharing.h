#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

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
/// Every other rank asks the lowest one, over the job's authenticated connections, to send the
/// descriptor of the memory to a Unix socket, with a secret that tells it from what strangers send
/// there. So nobody else is given it. Ranks that cannot reach each other so, in containers with
/// networks of their own, learn of it.
///
/// Collective, blocks. `connector` may be null for one rank. Throws Error(kEngine) on every rank,
/// with the reason of one, if one of them cannot make or map the memory: nothing is left then.
/// Otherwise what Connector::establish throws.
HostMemory share_memory(Connector* connector, const MemorySharing& sharing);

/// How a rank asks for the memory. Part of the wire format, little endian.
struct MemoryRequest {
  std::uint64_t bytes;  ///< of the memory for all ranks, which must agree
  char name[48];        ///< of its Unix socket, with a zero at the end
  char secret[32];
};

}  // namespace aiacc
