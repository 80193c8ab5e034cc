#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "csrc/engines/coded_all_reduce.h"
#include "csrc/engines/hierarchical/host_topology.h"
#include "csrc/kernels/quantise.h"
#include "csrc/kernels/select.h"
#include "csrc/kernels/selection/random_sample.h"

namespace aiacc {

// Coded all-reduces of ranks that are all here, for references: the same codes, no messages.

using Floats = std::vector<float>;

/// What one rank gives to a coded all-reduce, and gets.
struct CodedRank {
  Floats values;
  Floats residual;         ///< empty: without feedback
  std::uint64_t seed = 1;  ///< which of equal magnitudes are the largest
};

/// Multiples of 2^-10 below 8: sums of some ranks are exact, in any order.
inline Floats exact_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Floats values(count);
  for (float& value : values) {
    value = (static_cast<float>(random() % 16'384) - 8192) / 1024;
  }
  return values;
}

inline Floats decoded(const Floats& given, float* residual, const BlockCode& code) {
  std::vector<std::byte> wire(encoded_bytes(given.size(), code));
  encode_blocks(wire.data(), given.data(), residual, given.size(), code, 1.0F, {}, 0);
  Floats values(given.size());
  decode_blocks(values.data(), wire.data(), given.size(), code, 1.0F);
  return values;
}

/// Every rank's code is added up; then each shard of the sum is coded, with its owner's residual.
inline void sum_in_blocks(std::vector<CodedRank*>& ranks, const BlockCode& code) {
  const std::size_t count = ranks.front()->values.size();
  Floats sum;
  for (CodedRank* rank : ranks) {
    const Floats part =
        decoded(rank->values, rank->residual.empty() ? nullptr : rank->residual.data(), code);
    if (sum.empty()) {
      sum = part;
      continue;
    }
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] += part[i];
    }
  }
  const std::size_t blocks = (count + code.block - 1) / code.block;
  std::size_t begin = 0;
  for (std::size_t owner = 0; owner < ranks.size(); ++owner) {
    const std::size_t some = blocks / ranks.size() + (owner < blocks % ranks.size() ? 1 : 0);
    const std::size_t end = std::min(count, begin + some * code.block);
    const Floats shard(sum.data() + begin, sum.data() + end);
    Floats& residual = ranks[owner]->residual;
    const Floats result = decoded(shard, residual.empty() ? nullptr : &residual[begin], code);
    for (CodedRank* rank : ranks) {
      std::copy(
          result.begin(), result.end(), rank->values.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    begin = end;
  }
}

inline void sum_of_largest(std::vector<CodedRank*>& ranks, const Coding& coding) {
  const std::size_t count = ranks.front()->values.size();
  const std::size_t selected = coding.selected(count);
  Floats sum(count, 0.0F);
  for (CodedRank* rank : ranks) {
    std::vector<std::byte> pairs(pairs_bytes(selected));
    ThresholdTrack track;
    SelectScratch scratch;
    select_largest(pairs.data(),
                   rank->values.data(),
                   rank->residual.empty() ? nullptr : rank->residual.data(),
                   count,
                   selected,
                   1.0F,
                   coding.mode(),
                   rank->seed,
                   track,
                   scratch);
    scatter_add(sum.data(), pairs.data(), selected, count, 1.0F);
  }
  for (CodedRank* rank : ranks) {
    rank->values = sum;
  }
}

/// Of all references here.
constexpr std::uint64_t kCommonSeed = 77;

inline void sum_of_random(std::vector<CodedRank*>& ranks, const Coding& coding) {
  const std::size_t count = ranks.front()->values.size();
  const RandomSample places(count, coding.selected(count), kCommonSeed);
  Floats sum(places.size(), 0.0F);
  for (CodedRank* rank : ranks) {
    Floats sample(places.size());
    take_sample(sample.data(),
                rank->values.data(),
                rank->residual.empty() ? nullptr : rank->residual.data(),
                places,
                coding.unbiased());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += sample[i];
    }
  }
  for (CodedRank* rank : ranks) {
    put_sample(rank->values.data(), sum.data(), places);
  }
}

inline void coded_sum(std::vector<CodedRank*> ranks, const Coding& coding) {
  if (ranks.front()->values.empty()) {
    return;
  }
  if (coding.in_blocks()) {
    sum_in_blocks(ranks, coding.block_code());
  } else if (coding.format == WireFormat::kRandom) {
    sum_of_random(ranks, coding);
  } else {
    sum_of_largest(ranks, coding);
  }
}

/// On two levels: each host's sum as it is, in one share per column; each share coded between
/// hosts, with the residual of the ranks of its column. Of other shares it goes into the sum.
inline void coded_sum_of_hosts(std::vector<CodedRank>& ranks,
                               const std::vector<int>& host_of,
                               const Coding& coding) {
  const HostTopology layout(host_of);
  const std::size_t count = ranks.front().values.size();
  const auto columns = static_cast<std::size_t>(layout.columns());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto own = static_cast<std::size_t>(layout.local(static_cast<int>(rank)));
    Floats& residual = ranks[rank].residual;
    const std::size_t begin =
        std::min(own, columns) * (count / columns) + std::min({own, columns, count % columns});
    const std::size_t mine = own >= columns ? 0 : count / columns + (own < count % columns ? 1 : 0);
    for (std::size_t i = 0; i < residual.size(); ++i) {
      if (i < begin || i >= begin + mine) {
        ranks[rank].values[i] += std::exchange(residual[i], 0.0F);
      }
    }
  }
  Floats result;
  for (int column = 0; column < layout.columns(); ++column) {
    const std::size_t begin = result.size();
    const std::size_t end =
        begin + count / columns + (static_cast<std::size_t>(column) < count % columns ? 1 : 0);
    std::vector<CodedRank> parts;
    for (const int member : layout.column(column)) {
      CodedRank part{Floats(end - begin, 0.0F), {}, ranks[static_cast<std::size_t>(member)].seed};
      for (const int rank : layout.ranks_on(layout.host(member))) {
        for (std::size_t i = begin; i < end; ++i) {
          part.values[i - begin] += ranks[static_cast<std::size_t>(rank)].values[i];
        }
      }
      const Floats& residual = ranks[static_cast<std::size_t>(member)].residual;
      if (!residual.empty()) {
        part.residual.assign(residual.data() + begin, residual.data() + end);
      }
      parts.push_back(std::move(part));
    }
    std::vector<CodedRank*> all;
    for (CodedRank& part : parts) {
      all.push_back(&part);
    }
    coded_sum(all, coding);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Floats& residual = ranks[static_cast<std::size_t>(layout.column(column)[i])].residual;
      std::copy(parts[i].residual.begin(),
                parts[i].residual.end(),
                residual.begin() + static_cast<std::ptrdiff_t>(residual.empty() ? 0 : begin));
    }
    const Floats& share = parts.front().values;
    result.insert(result.end(), share.begin(), share.end());
  }
  for (CodedRank& rank : ranks) {
    rank.values = result;
  }
}

}  // namespace aiacc
