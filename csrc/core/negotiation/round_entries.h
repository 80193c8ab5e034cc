#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "csrc/core/negotiation/byte_io.h"
#include "csrc/core/negotiation/rank_set.h"
#include "csrc/core/negotiation/request_codec.h"

namespace aiacc {

/// The ranks that sent an entry, and the parts in which their requests differ.
struct Senders {
  struct Share {
    RankSet ranks;
    OwnPart part;
  };
  std::vector<Share> shares;  ///< not empty; by part, ascending; no rank is in two of them

  Senders() = default;
  Senders(int rank, OwnPart part) : shares{{RankSet(rank), std::move(part)}} {}

  RankSet ranks() const;
  /// Lowest and highest rank.
  int first() const;
  int last() const;
  /// The part of that rank; null if it is none of them.
  const OwnPart* part_of(int rank) const;
  /// Throws Error(kPeerLost) if a rank is in both.
  void add(const Senders& other);

  void encode(Writer& writer) const;
  /// `size`: of the job.
  static Senders decode(Reader& reader, int size);
};

/// The first byte of a key. What must not travel before the rest has comes later.
enum class EntryKind : char {
  kRequest = 0,
  kLast = 1,     ///< the request of a join or the removal of a set: after what was submitted before
  kText = 2,     ///< the text of a request, for ranks that lack it
  kLane = 3,     ///< what a lane is at
  kPending = 4,  ///< a name that waits; the empty one: the answer to a stall query
};

/// Something that one rank says, or several alike.
struct Entry {
  std::string_view key;       ///< kind, then text; equal for all senders, and for nothing else
  std::uint32_t senders = 0;  ///< which of RoundEntries::senders
  /// Its place in what the highest of the ranks has submitted; of a name that waits, for how many
  /// milliseconds the rank that has waited longest does.
  std::uint32_t position = 0;
};

/// Upper limit of the entries of one round, for any number of ranks; a single entry may exceed it.
inline constexpr std::size_t kRoundBudget = std::size_t{4} << 20;
/// What counts for an entry besides its key and what its senders' parts add.
inline constexpr std::size_t kEntryCost = 64;
/// A rank's part is free up to this size: the number of a GPU.
inline constexpr std::size_t kFreePartBytes = 2;

/// What of kRoundBudget an entry takes. More senders never make it less.
std::size_t cost_of(std::string_view key, const Senders& senders);

/// All entries of a round: everything but bits and flags.
///
/// Sorted by key and without repetition, so that each union has one form. What is beyond
/// kRoundBudget is cut off, from the same key on whatever the order in which shares are folded: a
/// partial union is never cut at a lower key than the whole one. The sender repeats what was cut in
/// the next round. Views belong to the bytes or strings that it was made of.
struct RoundEntries {
  std::vector<Senders> senders;
  std::vector<Entry> entries;
  std::optional<std::string_view> cut;  ///< the lowest key that was cut off

  bool empty() const { return entries.empty() && !cut; }

  /// Sorts entries of one rank, which have different keys, and cuts.
  void settle();
  void encode(Writer& writer) const;
  /// Throws Error(kPeerLost) on anything malformed, and on ranks from `size` on.
  static RoundEntries decode(Reader& reader, int size);
};

/// Everything of both.
RoundEntries merge(const RoundEntries& a, const RoundEntries& b);

}  // namespace aiacc
