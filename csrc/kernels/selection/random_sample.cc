#include "csrc/kernels/selection/random_sample.h"

#include <algorithm>
#include <limits>

#include "csrc/base/error.h"
#include "csrc/kernels/selection/source.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

constexpr std::size_t kLongestRun = std::size_t{1} << 24;

/// The output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t mixed(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

}  // namespace

RandomSample::RandomSample(std::size_t count, std::size_t k, std::uint64_t seed)
    : count_(count),
      k_(k),
      seed_(mixed(seed)),
      length_(k == 0 ? 0 : count / k),
      longer_(k == 0 ? 0 : count % k) {
  AIACC_CHECK(k <= count && length_ < kLongestRun);
}

std::size_t RandomSample::place(std::size_t i) const {
  constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15;
  // 40 bits of chance times less than 24 of length.
  const std::uint64_t chance = mixed(seed_ + (i + 1) * kGamma) >> 24;
  return i * length_ + std::min(i, longer_) + ((chance * run(i)) >> 40);
}

void take_sample(
    float* sample, const float* in, float* residual, const RandomSample& places, bool weighted) {
  static const VectorLevel& level = *runnable_vector_levels().front();
  const Source source(level, in, residual, places.count(), 1.0F);
  const std::uint32_t largest =
      source.for_each_block([](const float*, std::size_t, std::size_t) {});
  if (largest >= kInfinityBits) {
    std::fill_n(sample, places.size(), std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const float* values = in;
  if (residual != nullptr) {
    source.read(residual, 0, places.count());
    values = residual;
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t place = places.place(i);
    const float value = values[place];
    sample[i] = weighted ? value * static_cast<float>(places.run(i)) : value;
    if (residual != nullptr) {
      residual[place] = value - sample[i];
    }
  }
}

void put_sample(float* out, const float* sample, const RandomSample& places) {
  std::fill_n(out, places.count(), 0.0F);
  for (std::size_t i = 0; i < places.size(); ++i) {
    out[places.place(i)] = sample[i];
  }
}

}  // namespace aiacc
