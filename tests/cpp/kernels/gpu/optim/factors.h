#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/kernels/gpu/optim/factor_packing.h"

namespace aiacc {

/// Rows and columns of what is packed of a matrix, in order: up to 256 the triangle row by row; of
/// a larger one the triangles of the squares of 128 on its diagonal, then what is right of each.
inline std::vector<std::pair<std::size_t, std::size_t>> packed_order(std::size_t dim) {
  const std::size_t square = dim <= 256 ? dim : 128;
  std::vector<std::pair<std::size_t, std::size_t>> order;
  const auto add = [&](std::size_t row, std::size_t begin, std::size_t end) {
    for (std::size_t column = begin; column < end; ++column) {
      order.emplace_back(row, column);
    }
  };
  const auto stop_of = [&](std::size_t row) {
    const std::size_t stop = (row / square + 1) * square;
    return stop < dim ? stop : dim;
  };
  for (std::size_t row = 0; row < dim; ++row) {
    add(row, row, stop_of(row));
  }
  for (std::size_t row = 0; row < dim; ++row) {
    add(row, stop_of(row), dim);
  }
  return order;
}

/// Different numbers that float holds exactly.
inline double value_of(std::size_t place) { return static_cast<double>(place % 9973) - 4000; }

/// Stacks of matrices as parts of wider memory, and their triangles, with room between all.
template <class T>
class Factors {
 public:
  struct Shape {
    std::size_t dim;
    std::size_t number;
  };

  explicit Factors(const std::vector<Shape>& shapes) : shapes_(shapes) {
    for (const Shape& shape : shapes_) {
      matrices_.emplace_back(shape.number * matrix_stride(shape) + kRoom, kUntouched);
      packed_.emplace_back(shape.number * shape.dim * (shape.dim + 1) / 2 + 2 * kRoom, kUntouched);
    }
  }

  std::vector<FactorStack> stacks() {
    std::vector<FactorStack> made;
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const Shape& shape = shapes_[i];
      made.push_back({matrices_[i].data() + kRoom,
                      packed_[i].data() + kRoom,
                      shape.dim,
                      shape.number,
                      shape.dim + kRoom,
                      matrix_stride(shape)});
    }
    return made;
  }

  /// Calls visit(upper element, lower element, packed element, its place) for all that is packed.
  template <class Visit>
  void each(Visit visit) {
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const Shape& shape = shapes_[i];
      std::size_t place = 0;
      const auto order = packed_order(shape.dim);
      for (std::size_t number = 0; number < shape.number; ++number) {
        T* matrix = matrices_[i].data() + kRoom + number * matrix_stride(shape);
        for (const auto& [row, column] : order) {
          const std::size_t stride = shape.dim + kRoom;
          visit(matrix[row * stride + column],
                matrix[column * stride + row],
                packed_[i][kRoom + place],
                place);
          ++place;
        }
      }
    }
  }
  const std::vector<std::vector<T>>& matrices() const { return matrices_; }
  const std::vector<std::vector<T>>& packed() const { return packed_; }

 private:
  static constexpr std::size_t kRoom = 3;
  static constexpr T kUntouched = 12345;

  static std::size_t matrix_stride(const Shape& shape) {
    return shape.dim * (shape.dim + kRoom) + kRoom;
  }

  std::vector<Shape> shapes_;
  std::vector<std::vector<T>> matrices_;
  std::vector<std::vector<T>> packed_;
};

}  // namespace aiacc
