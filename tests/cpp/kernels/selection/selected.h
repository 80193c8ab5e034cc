#pragma once

// What is selected of, and a selection with everything that it wrote.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/select.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {

/// What gradients look like, and what selections get wrong.
enum class Shape {
  kGaussian,
  kLaplace,
  kStudent,     ///< Student's t with two degrees of freedom: the largest are thousands of means
  kLayers,      ///< Gaussian in eight scales
  kAscending,   ///< the worst order for one pass
  kFewValues,   ///< five magnitudes, so that most are equal
  kConstant,    ///< one magnitude, both signs
  kMostlyZero,  ///< one in fifty is not zero
  kZero,
  kSubnormal,
};

inline std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes;
  for (int shape = 0; shape <= static_cast<int>(Shape::kSubnormal); ++shape) {
    shapes.push_back(static_cast<Shape>(shape));
  }
  return shapes;
}

inline std::vector<float> elements_of(Shape shape, std::size_t count, std::uint32_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> exponential;
  const auto element = [&](std::size_t i, double sign) {
    switch (shape) {
      case Shape::kGaussian:
        return normal(random);
      case Shape::kLaplace:
        return sign * exponential(random);
      case Shape::kStudent:
        return normal(random) / std::sqrt(exponential(random));
      case Shape::kLayers:
        return normal(random) * std::pow(3.0, -static_cast<double>(i * 8 / count));
      case Shape::kAscending:
        return sign * static_cast<double>(i);
      case Shape::kFewValues:
        return sign * static_cast<double>(random() % 5);
      case Shape::kConstant:
        return sign * 0.1;
      case Shape::kMostlyZero:
        return random() % 50 == 0 ? normal(random) : sign * 0.0;
      case Shape::kZero:
        break;
      case Shape::kSubnormal:
        return normal(random) * 1e-42;
    }
    return 0.0;
  };
  std::vector<float> elements(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double sign = random() % 2 == 0 ? 1.0 : -1.0;
    elements[i] = static_cast<float>(element(i, sign));
  }
  return elements;
}

/// The magnitudes in descending order.
inline std::vector<float> sorted_magnitudes(std::vector<float> elements) {
  for (float& element : elements) {
    element = std::fabs(element);
  }
  std::sort(elements.rbegin(), elements.rend());
  return elements;
}

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
