#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/base/bit_vector.h"
#include "csrc/control/control_plane.h"
#include "csrc/core/request.h"
#include "csrc/planning/parameters.h"

namespace aiacc {

/// What one rank contributes to a round besides its bits.
struct Report {
  std::int32_t rank = 0;
  std::vector<Request> requests;     ///< new to the others
  std::vector<std::string> pending;  ///< answer to a stall query: names submitted and not ready
  bool has_pending = false;
  std::vector<Parameters> proposals;  ///< at most one
};

/// Flags are combined with OR, slot bits with AND.
enum RoundFlag : std::uint32_t {
  kFlagStallQuery = 1U << 0,  ///< somebody asks what everybody waits for
  kFlagMoving = 1U << 1,      ///< the sender may submit more before it needs another rank
  kFlagBusy = 1U << 2,        ///< units of the sender are under way
};

/// The message of one round: AND bits per slot, OR flags, reports of the ranks merged so far.
struct RoundMessage {
  std::uint32_t flags = 0;
  std::uint32_t epoch = 0;  ///< parameter epoch of the sender; equal everywhere
  BitVector ready;          ///< bit = slot; 1 = submitted here
  std::vector<Report> reports;

  void encode(Bytes& out) const;
  /// Bytes come from the network: throws Error(kPeerLost) on anything malformed, never reads
  /// beyond the end and never allocates more than the input justifies.
  void decode(const Bytes& in);
};

/// Folds one encoded message into another. Throws Error(kInternal) if their slot tables differ.
void combine_rounds(Bytes& mine, const Bytes& theirs);

}  // namespace aiacc
