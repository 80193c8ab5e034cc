#include "csrc/kernels/lars.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "csrc/base/error.h"
#include "csrc/base/thread.h"
#include "csrc/kernels/lars_factors.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

/// A thread's start costs as much as a step of some ten thousand elements.
constexpr std::size_t kElementsOfThread = 1 << 18;

double sum_of(const double* sums) {
  double sum = 0;
  for (int lane = 0; lane < 8; ++lane) {
    sum += sums[lane];
  }
  return sum;
}

double trust_ratio(const VectorLevel& level,
                   const float* weights,
                   const float* gradient,
                   std::size_t count,
                   const LarsOptions& options) {
  double squares[2][8] = {};
  level.add_squares(squares[0], squares[1], weights, gradient, count);
  return lars_ratio(sum_of(squares[0]), sum_of(squares[1]), options);
}

}  // namespace

void lars_step(float* weights,
               const float* gradient,
               float* momentum,
               std::size_t count,
               const LarsOptions& options) {
  static const VectorLevel& level = *runnable_vector_levels().front();
  const double ratio = options.adapt ? trust_ratio(level, weights, gradient, count, options) : 1.0;
  const MomentumFactors factors = lars_factors(ratio, options, momentum != nullptr);
  level.momentum_update(weights, gradient, momentum, count, factors);
}

void lars_steps(const std::vector<LarsTensor>& tensors,
                const LarsOptions& options,
                unsigned threads) {
  std::vector<const LarsTensor*> order;
  std::size_t elements = 0;
  for (const LarsTensor& tensor : tensors) {
    order.push_back(&tensor);
    elements += tensor.count;
  }
  // The longest first, so that all end at about the same time. (std::stable_sort takes memory in a
  // deprecated way.)
  std::sort(order.begin(), order.end(), [](const LarsTensor* a, const LarsTensor* b) {
    return a->count != b->count ? a->count > b->count : a < b;
  });
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < order.size(); i = next++) {
      const LarsTensor& tensor = *order[i];
      lars_step(tensor.weights, tensor.gradient, tensor.momentum, tensor.count, options);
    }
  };
  const std::size_t most =
      std::min({std::size_t{threads}, order.size(), elements / kElementsOfThread});
  std::vector<std::thread> others;
  others.reserve(most);
  while (others.size() + 1 < most) {
    try {
      others.push_back(start_thread("aiacc lars", work));
    } catch (const Error&) {  // no room: those that there are do all
      break;
    }
  }
  work();
  for (std::thread& other : others) {
    other.join();
  }
}

}  // namespace aiacc
