#include "csrc/kernels/selection/mstopk.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

/// Halvings that one pass over the source replaces: it counts against all 2^kLevels - 1 thresholds
/// that they may visit.
constexpr int kLevels = 5;

}  // namespace

Magnitudes measure_magnitudes(const Source& source) {
  double sum = 0.0;
  const std::uint32_t largest =
      source.for_each_block([&](const float* block, std::size_t n, std::size_t) {
        double parts[8] = {};
        source.level().add_magnitudes(parts, block, n);
        double of_block = 0.0;
        for (const double part : parts) {
          of_block += part;
        }
        sum += of_block;
      });
  Magnitudes magnitudes;
  magnitudes.finite = largest < kInfinityBits;
  magnitudes.largest = float_of_bits(largest);
  magnitudes.mean = source.count() == 0 ? 0.0 : sum / static_cast<double>(source.count());
  return magnitudes;
}

Bracket bisect(const Source& source, const Magnitudes& magnitudes, std::size_t k, int bisections) {
  AIACC_CHECK(bisections >= 0 && bisections <= 52);
  Bracket bracket = {std::numeric_limits<float>::infinity(), 0.0F, 0, source.count()};
  const double width = static_cast<double>(magnitudes.largest) - magnitudes.mean;
  double begin = 0.0;  // positions between mean and maximum, exact, since all are dyadic
  double end = 1.0;
  for (int done = 0; done < bisections; done += kLevels) {
    const std::size_t parts = std::size_t{1} << std::min(kLevels, bisections - done);
    const double step = (end - begin) / static_cast<double>(parts);
    std::vector<float> thresholds(parts);
    std::vector<std::uint32_t> bits(parts);
    for (std::size_t i = 1; i < parts; ++i) {
      const double position = begin + static_cast<double>(i) * step;
      thresholds[i] = static_cast<float>(magnitudes.mean + position * width);
      bits[i] = magnitude_bits(thresholds[i]);
    }
    std::vector<std::uint64_t> counts(parts);
    source.for_each_block([&](const float* block, std::size_t n, std::size_t) {
      source.level().count_reaching(counts.data() + 1, block, n, bits.data() + 1, parts - 1);
    });
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
    end = begin + static_cast<double>(right) * step;
    begin += static_cast<double>(left) * step;
  }
  return bracket;
}

}  // namespace aiacc
