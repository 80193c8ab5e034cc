#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/selection/source.h"

namespace aiacc {

/// Where the k-th largest magnitude lies, 0 < k <= count: among the `inside` elements whose bits
/// without sign, shifted right by `shift`, equal `prefix`. `above` elements are larger than those.
struct RadixBin {
  std::uint32_t prefix = 0;
  int shift = 31;
  std::size_t above = 0;
  std::size_t inside = 0;
};

/// The bin of everything.
RadixBin radix_start(const Source& source);

/// One more pass over the source: splits the bin by the next 11, 10 and 10 bits. After three the
/// bin is one magnitude.
RadixBin radix_refine(const Source& source, const RadixBin& bin, std::size_t k);

/// The bracket whose `low` is the k-th largest magnitude itself and whose `high` is the next
/// float32. Everything is finite.
Bracket radix_bracket(const Source& source, RadixBin bin, std::size_t k);

}  // namespace aiacc
