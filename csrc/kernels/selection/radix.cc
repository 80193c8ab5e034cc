#include "csrc/kernels/selection/radix.h"

#include <array>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr std::size_t kBins = 2048;
/// Neighbours often meet in a bin, and an increment waits for the last one there: so several
/// tables.
constexpr std::size_t kTables = 4;
using Table = std::array<std::uint32_t, kBins>;

void count_all(std::array<Table, kTables>& tables, const float* block, std::size_t n, int shift) {
  std::size_t i = 0;
  for (; i + kTables <= n; i += kTables) {
    for (std::size_t j = 0; j < kTables; ++j) {
      ++tables[j][magnitude_bits(block[i + j]) >> shift];
    }
  }
  for (; i < n; ++i) {
    ++tables[0][magnitude_bits(block[i]) >> shift];
  }
}

void count_inside(Table& table, const float* block, std::size_t n, const RadixBin& bin, int shift) {
  const std::uint32_t mask = (1U << (bin.shift - shift)) - 1;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = magnitude_bits(block[i]);
    if (bits >> bin.shift == bin.prefix) {
      ++table[bits >> shift & mask];
    }
  }
}

}  // namespace

RadixBin radix_start(const Source& source) {
  RadixBin bin;
  bin.inside = source.count();
  return bin;
}

RadixBin radix_refine(const Source& source, const RadixBin& bin, std::size_t k) {
  AIACC_CHECK(k > bin.above && k <= bin.above + bin.inside);
  const int shift = bin.shift == 31 ? 20 : bin.shift - 10;
  std::array<Table, kTables> tables = {};
  RadixBin next;
  source.for_each_block([&](const float* block, std::size_t n, std::size_t) {
    if (bin.shift == 31) {
      count_all(tables, block, n, shift);
    } else {
      count_inside(tables[0], block, n, bin, shift);
    }
  });
  next.shift = shift;
  next.above = bin.above;
  std::size_t digit = kBins;
  while (digit-- > 0) {
    next.inside = 0;
    for (const Table& table : tables) {
      next.inside += table[digit];
    }
    if (next.above + next.inside >= k) {
      break;
    }
    next.above += next.inside;
  }
  const int digits = bin.shift - shift;
  next.prefix = bin.prefix << digits | static_cast<std::uint32_t>(digit);
  return next;
}

Bracket radix_bracket(const Source& source, RadixBin bin, std::size_t k) {
  while (bin.shift > 0) {
    bin = radix_refine(source, bin, k);
  }
  return {
      float_of_bits(bin.prefix + 1), float_of_bits(bin.prefix), bin.above, bin.above + bin.inside};
}

}  // namespace aiacc
