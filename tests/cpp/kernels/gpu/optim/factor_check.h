#pragma once

// What the kernels for K-FAC's factors do, by whoever does it, against plain loops: bit by bit.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "csrc/kernels/gpu/optim/device_factors.h"
#include "tests/gpu/mirrored.h"

namespace aiacc {

template <class T>
constexpr DataType kFactorType = sizeof(T) == 4 ? DataType::kFloat32 : DataType::kFloat64;

struct FactorShape {
  std::size_t dim;
  std::size_t number;
};
using FactorShapes = std::vector<FactorShape>;

/// Tiles have 64 rows, squares 128, and from 257 on matrices are cut.
inline const FactorShapes& factor_shapes() {
  static const FactorShapes shapes = {{1, 1},
                                      {5, 3},
                                      {64, 1},
                                      {0, 2},
                                      {65, 2},
                                      {4, 0},
                                      {130, 1},
                                      {256, 1},
                                      {257, 1},
                                      {300, 2},
                                      {384, 1},
                                      {460, 1}};
  return shapes;
}

struct FactorJob {
  FactorWork work;
  double enters;
};
inline constexpr FactorJob kFactorJobs[] = {{FactorWork::kPack, 1},
                                            {FactorWork::kUnpack, 1},
                                            {FactorWork::kAverage, 0.05},
                                            {FactorWork::kAverage, 0.25},
                                            {FactorWork::kAverage, 0.75},
                                            {FactorWork::kAverage, 1}};

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
  const auto stop_of = [&](std::size_t row) { return std::min((row / square + 1) * square, dim); };
  for (std::size_t row = 0; row < dim; ++row) {
    add(row, row, stop_of(row));
  }
  for (std::size_t row = 0; row < dim; ++row) {
    add(row, stop_of(row), dim);
  }
  return order;
}

/// Stacks of matrices as parts of wider memory, and their triangles, with room around all.
template <class T>
class Factors {
 public:
  Factors(GpuRig& rig, const FactorShapes& shapes) : shapes_(shapes) {
    for (const auto& [dim, number] : shapes) {
      matrices_.emplace_back(rig, std::vector<T>(number * matrix_stride(dim), kUnused));
      packed_.emplace_back(rig, std::vector<T>(number * dim * (dim + 1) / 2, kUnused));
    }
  }

  std::vector<FactorStack> stacks(bool on_device, double enters) {
    std::vector<FactorStack> made;
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const auto [dim, number] = shapes_[i];
      made.push_back({on_device ? matrices_[i].device() : matrices_[i].host(),
                      on_device ? packed_[i].device() : packed_[i].host(),
                      dim,
                      number,
                      dim + kRoom,
                      matrix_stride(dim),
                      kScale,
                      enters});
    }
    return made;
  }
  /// Calls visit(upper element, lower element, packed element) for all that is packed, on the host.
  template <class Visit>
  void each(Visit visit) {
    for (const FactorStack& stack : stacks(false, 1)) {
      const auto order = packed_order(stack.dim);
      T* packed = static_cast<T*>(stack.packed);
      for (std::size_t number = 0; number < stack.number; ++number) {
        T* const matrix = static_cast<T*>(stack.matrices) + number * stack.matrix_stride;
        for (const auto& [row, column] : order) {
          visit(matrix[row * stack.row_stride + column],
                matrix[column * stack.row_stride + row],
                *packed);
          ++packed;
        }
      }
    }
  }
  /// Numbers for everything that `job` reads, and none for what it does not; on both sides.
  void fill(const FactorJob& job) {
    std::mt19937 random(7);
    std::normal_distribution<T> normal;
    const bool reads_matrices = job.work == FactorWork::kPack || job.enters != 1;
    each([&](T& upper, T& lower, T& packed) {
      packed = job.work == FactorWork::kPack ? T{1} : normal(random);
      lower = std::numeric_limits<T>::quiet_NaN();
      upper = reads_matrices ? normal(random) : lower;
    });
    for (std::deque<Mirrored<T>>* const all : {&matrices_, &packed_}) {
      for (Mirrored<T>& one : *all) {
        one.write();
      }
    }
  }
  /// Does it on the host, the plain way.
  void do_plainly(const FactorJob& job) {
    each([&](T& upper, T& lower, T& packed) {
      if (job.work == FactorWork::kPack) {
        packed = upper;
      } else if (job.work == FactorWork::kUnpack) {
        upper = lower = packed;
      } else {
        upper = lower = mean_of(upper, packed, static_cast<T>(job.enters));
      }
    });
  }
  bool equal() {
    const auto is_equal = [](Mirrored<T>& one) { return one.equal(); };
    return std::all_of(matrices_.begin(), matrices_.end(), is_equal) &&
           std::all_of(packed_.begin(), packed_.end(), is_equal);
  }

 private:
  static constexpr std::size_t kRoom = 3;
  static constexpr T kUnused = 12345;
  static constexpr double kScale = 1.0 / 3;

  static std::size_t matrix_stride(std::size_t dim) { return dim * (dim + kRoom) + kRoom; }
  /// As torch's lerp, without fused multiply-adds.
  static T mean_of(T mean, T packed, T enters) {
    const volatile T value = packed * static_cast<T>(kScale);
    if (enters == 1) {
      return value;
    }
    const volatile T change = value - mean;
    const volatile T part = (enters < T{0.5} ? enters : T{1} - enters) * change;
    return enters < T{0.5} ? mean + part : value - part;
  }

  const FactorShapes shapes_;
  std::deque<Mirrored<T>> matrices_;
  std::deque<Mirrored<T>> packed_;
};

/// The bodies of the kernels on the host.
struct FactorTwin {
  std::uint32_t blocks = 7;
  bool backwards = false;

  void operator()(FactorWork work, DataType dtype, const std::vector<FactorStack>& stacks) const {
    FactorBatch batch;
    plan_factors(dtype, stacks.data(), stacks.size(), batch);
    const FactorKernel& kernel = factor_kernels()[choose_factor_kernel(work, dtype)];
    kernel.run(batch, std::min(blocks, batch.chunks), backwards);
  }
};

/// What is wrong with what `runner` does, or "".
template <class T, class Runner>
std::string check_factors(GpuRig& rig,
                          const Runner& runner,
                          const FactorShapes& shapes,
                          const FactorJob& job) {
  Factors<T> factors(rig, shapes);
  factors.fill(job);
  factors.do_plainly(job);
  runner(job.work, kFactorType<T>, factors.stacks(true, job.enters));
  return factors.equal() ? ""
                         : std::string(name_of(kFactorType<T>)) + ": work " +
                               std::to_string(static_cast<int>(job.work)) + ", of which " +
                               std::to_string(job.enters) + " enters, of " +
                               std::to_string(shapes.size()) + " stacks differs";
}

}  // namespace aiacc
