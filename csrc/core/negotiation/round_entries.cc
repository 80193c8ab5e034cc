#include "csrc/core/negotiation/round_entries.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace aiacc {
namespace {

constexpr std::size_t kMostEntries = kRoundBudget / kEntryCost + 1;
/// Encoded entry: length and kind of its key, senders, position.
constexpr std::size_t kMinEntry = 4;
/// Encoded senders: their number, a rank set of one run, a part of one byte.
constexpr std::size_t kMinSenders = 6;
constexpr std::size_t kMinShare = 5;

std::size_t cost_of_parts(const Senders& senders) {
  std::size_t cost = 0;
  for (const Senders::Share& share : senders.shares) {
    const std::size_t bytes = part_bytes(share.part);
    if (bytes > kFreePartBytes) {
      cost += (bytes - kFreePartBytes) * share.ranks.count();
    }
  }
  return cost;
}

/// Fills entries in ascending order of their keys until the budget is spent.
class Filler {
 public:
  explicit Filler(std::optional<std::string_view> cut) { out_.cut = cut; }

  /// False if the entry is cut off; then all that would follow is, too.
  bool add(const Entry& entry, const Senders& senders, std::size_t cost_of_senders) {
    const std::size_t cost = kEntryCost + entry.key.size() + cost_of_senders;
    if (out_.cut && entry.key >= *out_.cut) {
      return false;
    }
    if (!out_.entries.empty() && spent_ + cost > kRoundBudget) {
      out_.cut = entry.key;
      return false;
    }
    spent_ += cost;
    out_.entries.push_back({entry.key, number_of(senders), entry.position});
    return true;
  }
  RoundEntries take() { return std::move(out_); }

 private:
  /// Numbered in the order of first use, so that equal entries have equal bytes.
  std::uint32_t number_of(const Senders& senders) {
    if (last_ == &senders) {
      return last_number_;
    }
    Bytes bytes;
    Writer writer(bytes);
    senders.encode(writer);
    const auto [found, fresh] =
        numbers_.emplace(std::string(bytes.begin(), bytes.end()), out_.senders.size());
    if (fresh) {
      out_.senders.push_back(senders);
    }
    last_ = &senders;
    last_number_ = static_cast<std::uint32_t>(found->second);
    return last_number_;
  }

  RoundEntries out_;
  std::size_t spent_ = 0;
  std::map<std::string, std::size_t> numbers_;  ///< by encoded senders
  const Senders* last_ = nullptr;
  std::uint32_t last_number_ = 0;
};

std::optional<std::string_view> lower(std::optional<std::string_view> a,
                                      std::optional<std::string_view> b) {
  if (!a || !b) {
    return a ? a : b;
  }
  return std::min(*a, *b);
}

}  // namespace

RankSet Senders::ranks() const {
  RankSet all;
  for (const Share& share : shares) {
    all.add(share.ranks);
  }
  return all;
}

int Senders::first() const {
  int first = shares.front().ranks.first();
  for (const Share& share : shares) {
    first = std::min(first, share.ranks.first());
  }
  return first;
}

int Senders::last() const {
  int last = -1;
  for (const Share& share : shares) {
    last = std::max(last, share.ranks.last());
  }
  return last;
}

const OwnPart* Senders::part_of(int rank) const {
  for (const Share& share : shares) {
    if (share.ranks.has(rank)) {
      return &share.part;
    }
  }
  return nullptr;
}

void Senders::add(const Senders& other) {
  if (ranks().meets(other.ranks())) {
    Reader::malformed("two ranks speak for the same one");
  }
  std::vector<Share> both;
  auto mine = shares.begin();
  auto theirs = other.shares.begin();
  while (mine != shares.end() || theirs != other.shares.end()) {
    if (theirs == other.shares.end() || (mine != shares.end() && mine->part < theirs->part)) {
      both.push_back(std::move(*mine++));
    } else if (mine == shares.end() || theirs->part < mine->part) {
      both.push_back(*theirs++);
    } else {
      both.push_back(std::move(*mine++));
      both.back().ranks.add((theirs++)->ranks);
    }
  }
  shares = std::move(both);
}

void Senders::encode(Writer& writer) const {
  writer.put_number(shares.size());
  for (const Share& share : shares) {
    share.ranks.encode(writer);
    writer.put_number(part_bytes(share.part));
    encode_part(share.part, writer);
  }
}

Senders Senders::decode(Reader& reader, int size) {
  Senders senders;
  RankSet all;
  for (auto left = reader.count(static_cast<std::size_t>(size), kMinShare); left > 0; --left) {
    Share share;
    share.ranks = RankSet::decode(reader, size);
    share.part = decode_part(reader.get_text(reader.left()));
    if (all.meets(share.ranks) ||
        (!senders.shares.empty() && !(senders.shares.back().part < share.part))) {
      Reader::malformed("senders that overlap");
    }
    all.add(share.ranks);
    senders.shares.push_back(std::move(share));
  }
  if (senders.shares.empty()) {
    Reader::malformed("an entry of no rank");
  }
  return senders;
}

std::size_t cost_of(std::string_view key, const Senders& senders) {
  return kEntryCost + key.size() + cost_of_parts(senders);
}

void RoundEntries::settle() {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.key, b.position) < std::tie(b.key, a.position);
  });
  Filler filler(cut);
  const Entry* last = nullptr;
  for (const Entry& entry : entries) {
    if (last != nullptr && last->key == entry.key) {
      continue;  // Two messages may read alike: the older one counts.
    }
    last = &entry;
    if (!filler.add(entry, senders[entry.senders], cost_of_parts(senders[entry.senders]))) {
      break;
    }
  }
  *this = filler.take();
}

void RoundEntries::encode(Writer& writer) const {
  writer.put_number(senders.size());
  for (const Senders& one : senders) {
    one.encode(writer);
  }
  writer.put_number(entries.size());
  for (const Entry& entry : entries) {
    writer.put_text(entry.key);
    writer.put_number(entry.senders);
    writer.put_number(entry.position);
  }
  writer.put_text(cut.value_or(std::string_view()));
}

RoundEntries RoundEntries::decode(Reader& reader, int size) {
  RoundEntries round;
  for (auto left = reader.count(kMostEntries, kMinSenders); left > 0; --left) {
    round.senders.push_back(Senders::decode(reader, size));
  }
  for (auto left = reader.count(kMostEntries, kMinEntry); left > 0; --left) {
    Entry entry;
    entry.key = reader.get_text(reader.left());
    entry.senders = static_cast<std::uint32_t>(reader.get_number(kMostEntries, "senders"));
    entry.position = static_cast<std::uint32_t>(
        reader.get_number(std::numeric_limits<std::uint32_t>::max(), "position"));
    if (entry.key.empty() || entry.key.front() > static_cast<char>(EntryKind::kPending) ||
        entry.key.front() < 0 || entry.senders >= round.senders.size()) {
      Reader::malformed("an unknown entry");
    }
    if (!round.entries.empty() && entry.key <= round.entries.back().key) {
      Reader::malformed("entries out of order");
    }
    round.entries.push_back(entry);
  }
  const std::string_view cut = reader.get_text(reader.left());
  if (!cut.empty()) {
    if (round.entries.empty() || cut <= round.entries.back().key) {
      Reader::malformed("entries behind the cut");
    }
    round.cut = cut;
  }
  return round;
}

RoundEntries merge(const RoundEntries& a, const RoundEntries& b) {
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Union {
    Senders senders;
    std::size_t cost = 0;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Union> unions;  // most entries share one
  Filler filler(lower(a.cut, b.cut));
  auto mine = a.entries.begin();
  auto theirs = b.entries.begin();
  while (mine != a.entries.end() || theirs != b.entries.end()) {
    Entry entry;
    std::pair<std::uint32_t, std::uint32_t> from{kNone, kNone};
    const int order = mine == a.entries.end()     ? 1
                      : theirs == b.entries.end() ? -1
                                                  : mine->key.compare(theirs->key);
    if (order <= 0) {
      from.first = mine->senders;
      entry = *mine++;
    }
    if (order >= 0) {
      from.second = theirs->senders;
      const bool waits = theirs->key.front() == static_cast<char>(EntryKind::kPending);
      if (order > 0 || (waits ? entry.position < theirs->position
                              : a.senders[from.first].last() < b.senders[from.second].last())) {
        entry = *theirs;
      }
      ++theirs;
    }
    const auto [found, fresh] = unions.try_emplace(from);
    if (fresh) {
      Senders& senders = found->second.senders;
      senders = from.first != kNone ? a.senders[from.first] : b.senders[from.second];
      if (order == 0) {
        senders.add(b.senders[from.second]);
      }
      found->second.cost = cost_of_parts(senders);
    }
    if (!filler.add(entry, found->second.senders, found->second.cost)) {
      break;
    }
  }
  return filler.take();
}

}  // namespace aiacc
