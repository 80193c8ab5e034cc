#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "csrc/kernels/select.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {

inline const std::vector<SelectMode>& select_modes() {
  static const std::vector<SelectMode> modes = {
      SelectMode::kTracked, SelectMode::kExact, SelectMode::kReference};
  return modes;
}

inline const char* name_of(SelectMode mode) {
  return mode == SelectMode::kTracked ? "tracked"
         : mode == SelectMode::kExact ? "exact"
                                      : "reference";
}

/// A selection with everything that it wrote.
struct Selected {
  Selection told;
  std::vector<unsigned char> wire;
  std::vector<float> values;
  std::vector<std::uint32_t> indices;
  std::vector<float> residual;
};

struct SelectInput {
  std::vector<float> in;
  std::vector<float> residual = {};  ///< empty: without feedback of the error
  float factor = 1.0F;
  std::uint64_t seed = 0;
};

inline Selected select(const SelectInput& input,
                       std::size_t k,
                       SelectMode mode,
                       ThresholdTrack& track,
                       const VectorLevel& level = *runnable_vector_levels().front()) {
  Selected selected;
  SelectScratch scratch;
  // Nothing lies where vectors would like it.
  std::vector<unsigned char> bytes(pairs_bytes(k) + 1);
  std::vector<float> in(1);
  in.insert(in.end(), input.in.begin(), input.in.end());
  std::vector<float> residual(3);
  residual.insert(residual.end(), input.residual.begin(), input.residual.end());
  selected.told = select_largest(bytes.data() + 1,
                                 in.data() + 1,
                                 input.residual.empty() ? nullptr : residual.data() + 3,
                                 input.in.size(),
                                 k,
                                 input.factor,
                                 mode,
                                 input.seed,
                                 track,
                                 scratch,
                                 &level);
  selected.residual.assign(residual.begin() + 3, residual.end());
  selected.wire.assign(bytes.begin() + 1, bytes.end());
  selected.values.resize(k);
  selected.indices.resize(k);
  if (k > 0) {
    std::memcpy(selected.values.data(), selected.wire.data(), k * 4);
    std::memcpy(selected.indices.data(), selected.wire.data() + k * 4, k * 4);
  }
  return selected;
}

inline Selected select(const SelectInput& input, std::size_t k, SelectMode mode) {
  ThresholdTrack track;
  return select(input, k, mode, track);
}

/// factor * in + residual, each step in float32.
inline std::vector<float> accumulated(const SelectInput& input) {
  std::vector<float> sums(input.in.size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const volatile float product = input.factor * input.in[i];
    sums[i] = input.residual.empty() ? product : product + input.residual[i];
  }
  return sums;
}

}  // namespace aiacc
