#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

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
  std::vector<float> elements(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double sign = random() % 2 == 0 ? 1.0 : -1.0;
    double value = 0.0;
    switch (shape) {
      case Shape::kGaussian:
        value = normal(random);
        break;
      case Shape::kLaplace:
        value = sign * exponential(random);
        break;
      case Shape::kStudent:
        value = normal(random) / std::sqrt(exponential(random));
        break;
      case Shape::kLayers:
        value = normal(random) * std::pow(3.0, -static_cast<double>(i * 8 / count));
        break;
      case Shape::kAscending:
        value = sign * static_cast<double>(i);
        break;
      case Shape::kFewValues:
        value = sign * static_cast<double>(random() % 5);
        break;
      case Shape::kConstant:
        value = sign * 0.1;
        break;
      case Shape::kMostlyZero:
        value = random() % 50 == 0 ? normal(random) : sign * 0.0;
        break;
      case Shape::kZero:
        break;
      case Shape::kSubnormal:
        value = normal(random) * 1e-42;
        break;
    }
    elements[i] = static_cast<float>(value);
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

}  // namespace aiacc
