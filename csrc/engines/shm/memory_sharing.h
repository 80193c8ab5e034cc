#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "csrc/control/tcp/connector.h"
#include "csrc/engines/shm/shared_memory.h"

namespace aiacc {

/// Who shares memory.
struct MemorySharing {
  std::vector<int> ranks;      ///< of the job, ascending, this one among them
  std::uint32_t split_id = 0;  ///< keeps their connections apart from those of other calls
  std::size_t bytes = 0;       ///< of every rank's part
  double timeout_s = 30;       ///< how long the ranks wait for each other
  int interrupt = -1;          ///< a descriptor that ends the wait when readable, unless it is -1
};

/// One piece of memory that has a part for each rank.
struct HostMemory {
  SharedMemory memory;
  std::vector<std::byte*> parts;  ///< in the order of the ranks, at multiples of a page
};

/// Makes memory for all ranks of a host. Each of them takes its own part from the system, so that
/// it lies on its NUMA node, and calls `prepare` with it before any other rank has it.
///
/// The lowest rank makes the memory, and passes its descriptor over a Unix socket. It tells the
/// others the name and a nonce over the job's authenticated connections, so nobody else, and no
/// other user, is given it; and in the end every rank has seen what another one wrote there. Ranks
/// that cannot reach each other so, in containers with networks of their own, learn of it.
///
/// Collective, blocks. `connector` may be null for one rank. Throws Error(kEngine) on every rank,
/// with the reason of one, if one of them cannot make or map the memory: nothing is left then.
/// Otherwise what Connector::establish throws.
HostMemory share_memory(Connector* connector,
                        const MemorySharing& sharing,
                        const std::function<void(std::byte* part)>& prepare);

/// What the ranks tell each other. Part of the wire format.
namespace sharing_wire {

/// How to get the memory, from the lowest rank to the others.
struct Invitation {
  std::uint64_t bytes;  ///< of the memory
  std::uint8_t nonce[16];
  char name[48];  ///< of the Unix socket, with a zero at the end
};

/// Who asks for the memory, on the Unix socket. Stands in every part as well, as a proof.
struct Mark {
  std::uint8_t nonce[16];
  std::uint32_t rank;
};

/// Begins every message on a connection: a Code and the bytes that follow, a text or an invitation.
struct ReportHeader {
  std::uint32_t code;
  std::uint32_t bytes;
};
inline constexpr std::uint32_t kMostReportBytes = 4096;

}  // namespace sharing_wire

}  // namespace aiacc
