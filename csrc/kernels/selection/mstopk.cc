#include "csrc/kernels/selection/mstopk.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr std::size_t kGroup = 1024;  ///< blocks whose sums are added before they join the others

}  // namespace

Magnitudes measure_magnitudes(const Source& source) {
  static_assert(Source::kBlock == 2048, "GPUs sum so many (csrc/kernels/gpu/selection.h)");
  double sum = 0.0;
  double of_group = 0.0;
  const std::uint32_t largest =
      source.for_each_block([&](const float* block, std::size_t n, std::size_t at) {
        if (at > 0 && at / Source::kBlock % kGroup == 0) {
          sum += of_group;
          of_group = 0.0;
        }
        double parts[8] = {};
        source.level().add_magnitudes(parts, block, n);
        double of_block = 0.0;
        for (const double part : parts) {
          of_block += part;
        }
        of_group += of_block;
      });
  sum += of_group;
  Magnitudes magnitudes;
  magnitudes.finite = largest < kInfinityBits;
  magnitudes.largest = float_of_bits(largest);
  magnitudes.mean = source.count() == 0 ? 0.0 : sum / static_cast<double>(source.count());
  return magnitudes;
}

Bracket bisect(
    const Source& source, const Magnitudes& magnitudes, std::size_t k, int bisections, int levels) {
  AIACC_CHECK(levels >= 1 && levels <= 6 && bisections >= 0 && bisections <= 52);
  Bisection bisection = {0.0, 1.0, std::numeric_limits<float>::infinity(), 0.0F, 0, source.count()};
  for (int done = 0; done < bisections; done += levels) {
    const std::size_t parts = std::size_t{1} << std::min(levels, bisections - done);
    std::vector<float> thresholds(parts);
    std::vector<std::uint32_t> bits(parts);
    for (std::size_t i = 1; i < parts; ++i) {
      const double position = position_of(bisection.left, bisection.right, i, parts);
      thresholds[i] = threshold_at(position, magnitudes.mean, magnitudes.largest);
      bits[i] = magnitude_bits(thresholds[i]);
    }
    std::vector<std::uint64_t> counts(parts);
    source.for_each_block([&](const float* block, std::size_t n, std::size_t) {
      source.level().count_reaching(counts.data() + 1, block, n, bits.data() + 1, parts - 1);
    });
    halve(bisection, parts, k, counts.data(), thresholds.data());
  }
  return {bisection.high,
          bisection.low,
          static_cast<std::size_t>(bisection.above),
          static_cast<std::size_t>(bisection.reached)};
}

}  // namespace aiacc
