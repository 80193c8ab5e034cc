#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/base/socket.h"
#include "csrc/control/rank_block.h"

namespace aiacc {

using Bytes = std::vector<std::uint8_t>;

/// The flags with which a message of the coordinators begins; 0 if it is shorter.
inline std::uint32_t flags_of(const Bytes& message) {
  std::uint32_t flags = 0;
  if (message.size() >= sizeof flags) {
    std::memcpy(&flags, message.data(), sizeof flags);
  }
  return flags;
}

/// Liveness checks per AIACC_PEER_TIMEOUT_S while a thread waits. Enough of them that a peer which
/// answers just before the limit survives, and that the limit is still met.
constexpr int kLooksPerTimeout = 32;

/// Who runs rounds: the loop thread, or a caller while that sleeps or waits for its turn.
enum class Runner { kLoop, kCaller };

/// Folds `theirs`, which holds shares of no other ranks than `from`, into `mine`. Associative and
/// commutative, so that every rank ends up with the same bytes whatever the order. Throws
/// Error(kPeerLost) if `theirs` is not what a rank may send.
using Combine = std::function<void(Bytes& mine, const Bytes& theirs, const RankBlock& from)>;

}  // namespace aiacc
