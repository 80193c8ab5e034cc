#include "csrc/kernels/select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/selection/selector.h"
#include "csrc/kernels/selection/source.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {

std::size_t pairs_bytes(std::size_t k) { return k * (sizeof(float) + sizeof(std::uint32_t)); }

std::size_t selected_count(std::size_t count, double density) {
  if (!(density >= 0.0 && density <= 1.0)) {
    throw Error(Code::kInvalidArgument,
                "[kernels] density " + std::to_string(density) +
                    " (expected 0 to 1); give the share of elements to send, such as 0.01");
  }
  const auto wanted = static_cast<std::size_t>(std::ceil(density * static_cast<double>(count)));
  return std::min(count, std::max<std::size_t>(wanted, 1));
}

Selection select_largest(void* wire,
                         const float* in,
                         float* residual,
                         std::size_t count,
                         std::size_t k,
                         float factor,
                         SelectMode mode,
                         std::uint64_t seed,
                         ThresholdTrack& track,
                         SelectScratch& scratch,
                         const VectorLevel* level) {
  AIACC_CHECK(k <= count && count <= UINT32_MAX);
  static const VectorLevel& widest = *runnable_vector_levels().front();
  const Source source(level == nullptr ? widest : *level, in, residual, count, factor);
  Selector selector(source, wire, residual, k, seed, scratch);
  if (k == 0) {
    return selector.nothing();
  }
  switch (mode) {
    case SelectMode::kTracked:
      return selector.tracked(track);
    case SelectMode::kExact:
      return selector.exact();
    case SelectMode::kReference:
      return selector.reference();
  }
  return {};
}

void scatter_add(float* out, const void* wire, std::size_t k, std::size_t count, float factor) {
  const auto* values = static_cast<const unsigned char*>(wire);
  const auto* indices = values + k * sizeof(float);
  const auto index_at = [&](std::size_t i) {
    std::uint32_t index;
    std::memcpy(&index, indices + i * sizeof index, sizeof index);
    return index;
  };
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < k; ++i) {
    largest = std::max(largest, index_at(i));
  }
  if (k > 0 && largest >= count) {
    throw Error(Code::kInternal,
                "[kernels] a pair of another rank has index " + std::to_string(largest) +
                    " (expected less than " + std::to_string(count) +
                    "); check that all ranks run the same aiacc");
  }
  for (std::size_t i = 0; i < k; ++i) {
    float value;
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    out[index_at(i)] += factor * value;
  }
}

}  // namespace aiacc
