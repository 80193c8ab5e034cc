#include "csrc/kernels/selection/mstopk.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

/// All orders of visit must round alike, so this is the only place that makes a threshold.
float threshold_at(double position, const Magnitudes& magnitudes) {
  const double width = static_cast<double>(magnitudes.largest) - magnitudes.mean;
  return static_cast<float>(magnitudes.mean + position * width);
}

}  // namespace

Magnitudes measure_magnitudes(const Source& source) {
  double sums[8] = {};
  const std::uint32_t largest =
      source.for_each_block([&](const float* block, std::size_t n, std::size_t) {
        source.level().add_magnitudes(sums, block, n);
      });
  double sum = 0.0;
  for (const double part : sums) {
    sum += part;
  }
  Magnitudes magnitudes;
  magnitudes.finite = largest < kInfinityBits;
  magnitudes.largest = float_of_bits(largest);
  magnitudes.mean = source.count() == 0 ? 0.0 : sum / static_cast<double>(source.count());
  return magnitudes;
}

Bracket bisect(
    const Source& source, const Magnitudes& magnitudes, std::size_t k, int bisections, int levels) {
  AIACC_CHECK(levels >= 1 && levels <= 6 && bisections >= 0 && bisections <= 52);
  Bracket bracket = {std::numeric_limits<float>::infinity(), 0.0F, 0, source.count()};
  double low = 0.0;
  double high = 1.0;
  for (int done = 0; done < bisections; done += levels) {
    const int now = std::min(levels, bisections - done);
    const std::size_t parts = std::size_t{1} << now;
    std::vector<float> thresholds(parts);
    std::vector<std::uint32_t> bits(parts);
    for (std::size_t i = 1; i < parts; ++i) {
      const double part = static_cast<double>(i) / static_cast<double>(parts);
      thresholds[i] = threshold_at(low + (high - low) * part, magnitudes);
      bits[i] = magnitude_bits(thresholds[i]);
    }
    std::vector<std::uint64_t> counts(parts);
    source.for_each_block([&](const float* block, std::size_t n, std::size_t) {
      source.level().count_reaching(counts.data() + 1, block, n, bits.data() + 1, parts - 1);
    });
    // The halvings, of which only the counts were missing.
    std::size_t left = 0;
    std::size_t right = parts;
    while (right - left > 1) {
      const std::size_t middle = (left + right) / 2;
      const auto count = static_cast<std::size_t>(counts[middle]);
      if (count <= k) {
        right = middle;
        if (count > bracket.above) {
          bracket.above = count;
          bracket.high = thresholds[middle];
        }
      } else {
        left = middle;
        if (count < bracket.reached) {
          bracket.reached = count;
          bracket.low = thresholds[middle];
        }
      }
    }
    const double width = (high - low) / static_cast<double>(parts);
    high = low + static_cast<double>(right) * width;
    low += static_cast<double>(left) * width;
  }
  return bracket;
}

}  // namespace aiacc
