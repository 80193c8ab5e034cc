#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/bit_vector.h"
#include "csrc/control/round.h"
#include "csrc/core/negotiation/rank_set.h"
#include "csrc/core/negotiation/request.h"
#include "csrc/core/negotiation/round_entries.h"
#include "csrc/planning/parameters.h"

namespace aiacc {

/// The unit that a lane of the sender runs, or will run next. Holds nothing specific to one rank,
/// so equal reports of all ranks merge into a few.
struct LaneReport {
  std::uint32_t lane = 0;
  std::uint32_t process_set = 0;
  std::uint64_t order = 0;  ///< of the plan that made it, counted by all ranks alike
  std::uint64_t unit = 0;   ///< its number in the process set
  bool stuck = false;       ///< it has waited for others for the limit, with nothing that moved
  /// For whom, if it is stuck: so many ranks behind the sender in the process set, where the first
  /// follows the last; 0: for several, or it is not known.
  std::uint32_t ahead = 0;
  std::string tensors;  ///< in words, if it is stuck
};

/// The equal requests of several ranks.
struct SharedRequest {
  RequestId id;
  std::string key;             ///< of the entry: equal keys, equal requests
  std::uint32_t position = 0;  ///< among the requests of the highest rank
  std::shared_ptr<const Senders> senders;
  /// Null: not known here. Its own part may be that of any of them.
  std::shared_ptr<const Request> request;
  bool told = false;  ///< every rank has got the request from a message

  SharedRequest() = default;
  /// That of one rank, which has asked for `position` other things before in this round. A request
  /// that changes which ranks there are travels with its text.
  SharedRequest(const Request& whole, int rank, std::uint32_t at);
  /// Its text, for the ranks that do not know it; the request must be known.
  SharedRequest spelled_out(int rank) const;

  /// The request of one of the senders.
  Request of(int rank) const { return with_part(*request, *senders->part_of(rank)); }
};

/// A name that has been submitted and is not ready, or a message that is under way.
struct PendingName {
  std::string label;
  std::uint32_t waited_ms = 0;  ///< of the rank that has waited longest, rounded up
  RankSet awaited;  ///< who has to submit it; of a message: whom it is to or may be from
  bool is_message = false;
  RankSet ranks = {};  ///< who has submitted it
};

/// A lane report that several ranks have in common.
struct LaneAnswer {
  LaneReport report;
  RankSet ranks;
};

/// Answers to a stall query.
struct Answers {
  RankSet ranks;                   ///< who has answered
  std::vector<LaneAnswer> lanes;   ///< of the lanes with work
  bool lanes_complete = true;      ///< false: some of them are missing
  std::vector<PendingName> names;  ///< as many as there is room for
};

struct Proposal {
  int rank = 0;
  Parameters parameters;
};

/// Flags are combined with OR, slot bits with AND.
enum RoundFlag : std::uint32_t {
  kFlagStallQuery = 1U << 0,  ///< somebody asks what everybody waits for
  kFlagBusy = 1U << 1,        ///< units of the sender are under way
  kFlagForming = 1U << 2,     ///< some ranks form a process set, for which no other is needed
  kFlagUnitQuery = 1U << 3,   ///< somebody asks what the lanes of everybody are at
};

/// The message of one round: AND bits per slot, OR flags, what the ranks merged so far say besides.
struct RoundMessage {
  std::uint32_t flags = 0;
  std::uint32_t epoch = 0;  ///< parameter epoch of the sender; equal everywhere
  BitVector ready;          ///< bit = slot; 1 = submitted here
  std::vector<SharedRequest> requests;
  std::vector<SharedRequest> texts;  ///< of requests that came before, each from one rank
  Answers answers;
  std::optional<Proposal> proposal;  ///< that of the lowest rank
  /// Where requests were cut off, see RoundEntries; whoever sent one with this key or a higher one
  /// sends it again.
  std::optional<std::string> cut;

  /// Discards everything but flags and bits.
  void clear_entries();
  void encode(Bytes& out) const;
  /// Bytes come from the network: throws Error(kPeerLost) on anything malformed, never reads
  /// beyond the end and never allocates more than the input and the job's size justify.
  void decode(const Bytes& in, int size = kMostRanks);
};

/// Folds one encoded message into another; the result does not depend on the order. Throws
/// Error(kInternal) if their slot tables differ, Error(kPeerLost) if `theirs` is malformed or
/// speaks for a rank that is not in `from`.
void combine_rounds(Bytes& mine, const Bytes& theirs, const RankBlock& from = {});

}  // namespace aiacc
