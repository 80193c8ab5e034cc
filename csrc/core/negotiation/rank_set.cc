#include "csrc/core/negotiation/rank_set.h"

#include <algorithm>
#include <string>
#include <utility>

namespace aiacc {
namespace {

/// The lowest bit of the first number tells the two forms apart.
constexpr std::uint64_t kBits = 1;

}  // namespace

std::size_t RankSet::count() const {
  std::size_t count = 0;
  for (const Run& run : runs_) {
    count += static_cast<std::size_t>(run.last - run.first) + 1;
  }
  return count;
}

bool RankSet::has(int rank) const {
  const auto run =
      std::lower_bound(runs_.begin(), runs_.end(), rank, [](const Run& candidate, int wanted) {
        return candidate.last < wanted;
      });
  return run != runs_.end() && run->first <= rank;
}

bool RankSet::meets(const RankSet& other) const {
  auto mine = runs_.begin();
  auto theirs = other.runs_.begin();
  while (mine != runs_.end() && theirs != other.runs_.end()) {
    if (mine->last < theirs->first) {
      ++mine;
    } else if (theirs->last < mine->first) {
      ++theirs;
    } else {
      return true;
    }
  }
  return false;
}

bool RankSet::within(const RankBlock& block) const {
  return std::all_of(
      runs_.begin(), runs_.end(), [&](const Run& run) { return block.has(run.first, run.last); });
}

void RankSet::add(const RankSet& other) {
  if (other.empty()) {
    return;
  }
  if (empty() || last() < other.first()) {  // most often
    for (const Run& run : other.runs_) {
      append(run);
    }
    return;
  }
  const std::vector<Run> mine = std::exchange(runs_, {});
  auto a = mine.begin();
  auto b = other.runs_.begin();
  while (a != mine.end() || b != other.runs_.end()) {
    const bool take_mine = b == other.runs_.end() || (a != mine.end() && a->first <= b->first);
    append(take_mine ? *a++ : *b++);
  }
}

RankSet RankSet::without(const RankSet& other) const {
  RankSet left;
  auto behind = other.runs_.begin();
  for (Run run : runs_) {
    while (behind != other.runs_.end() && behind->last < run.first) {
      ++behind;
    }
    for (auto gone = behind; gone != other.runs_.end() && gone->first <= run.last; ++gone) {
      if (gone->first > run.first) {
        left.append({run.first, gone->first - 1});
      }
      run.first = gone->last + 1;
    }
    if (run.first <= run.last) {
      left.append(run);
    }
  }
  return left;
}

/// A run that begins no earlier than the last one.
void RankSet::append(Run run) {
  if (!runs_.empty() && run.first <= runs_.back().last + 1) {
    runs_.back().last = std::max(runs_.back().last, run.last);
  } else {
    runs_.push_back(run);
  }
}

std::vector<int> RankSet::ranks() const {
  std::vector<int> list;
  list.reserve(count());
  for_each([&](int rank) { list.push_back(rank); });
  return list;
}

void RankSet::encode(Writer& writer) const {
  // Each run: how far it begins behind the one before, how far it goes.
  std::size_t as_runs = 0;
  int next = 0;
  for (const Run& run : runs_) {
    as_runs += number_bytes(static_cast<std::uint64_t>(run.first - next)) +
               number_bytes(static_cast<std::uint64_t>(run.last - run.first));
    next = run.last + 1;
  }
  const std::size_t bytes = empty() ? 0 : static_cast<std::size_t>((last() - first()) / 8 + 1);
  if (as_runs <= bytes + 4) {
    writer.put_number(runs_.size() << 1);
    next = 0;
    for (const Run& run : runs_) {
      writer.put_number(static_cast<std::uint64_t>(run.first - next));
      writer.put_number(static_cast<std::uint64_t>(run.last - run.first));
      next = run.last + 1;
    }
    return;
  }
  std::string bits(bytes, '\0');
  for_each([&](int rank) {
    const int bit = rank - first();
    bits[static_cast<std::size_t>(bit / 8)] |= static_cast<char>(1 << (bit % 8));
  });
  writer.put_number((bytes << 1) | kBits);
  writer.put_number(static_cast<std::uint64_t>(first()));
  writer.put_bytes(bits.data(), bits.size());
}

RankSet RankSet::decode(Reader& reader, int size) {
  const auto most = static_cast<std::uint64_t>(size);
  const std::uint64_t form = reader.get_number(most + 1, "a rank set of length");
  RankSet set;
  if ((form & kBits) == 0) {
    std::uint64_t next = 0;
    for (std::uint64_t left = form >> 1; left > 0; --left) {
      const std::uint64_t first = next + reader.get_number(most, "rank");
      const std::uint64_t last = first + reader.get_number(most, "rank");
      if (last >= most) {
        Reader::malformed("rank " + std::to_string(last));
      }
      set.append({static_cast<int>(first), static_cast<int>(last)});
      next = last + 1;
    }
  } else {
    const std::uint64_t first = reader.get_number(most, "rank");
    const std::string_view bits = reader.get_view(form >> 1);
    for (std::size_t bit = 0; bit < 8 * bits.size(); ++bit) {
      if (((static_cast<unsigned char>(bits[bit / 8]) >> (bit % 8)) & 1U) != 0) {
        if (first + bit >= most) {
          Reader::malformed("rank " + std::to_string(first + bit));
        }
        const int rank = static_cast<int>(first + bit);
        set.append({rank, rank});
      }
    }
  }
  if (set.empty()) {
    Reader::malformed("a set of no rank");
  }
  return set;
}

bool operator==(const RankSet& a, const RankSet& b) {
  return std::equal(a.runs_.begin(),
                    a.runs_.end(),
                    b.runs_.begin(),
                    b.runs_.end(),
                    [](const RankSet::Run& x, const RankSet::Run& y) {
                      return x.first == y.first && x.last == y.last;
                    });
}

}  // namespace aiacc
