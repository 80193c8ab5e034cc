// LARS against plain loops in double, and its kernels alike on all levels.

#include "csrc/kernels/lars.h"

#include <cstddef>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/vector/level.h"
#include "tests/cpp/kernels/lars_reference.h"

namespace aiacc {
namespace {

constexpr std::size_t kCounts[] = {0, 1, 7, 8, 9, 31, 33, 515};

std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::vector<float> made(count);
  for (float& value : made) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1U << 23) - 1.0F;
  }
  return made;
}

LarsOptions usual() {
  LarsOptions options;
  options.lr = 0.5;
  options.momentum = 0.9;
  options.weight_decay = 0.01;
  options.trust_coefficient = 0.02;
  options.eps = 1e-8;
  options.largest_ratio = std::numeric_limits<double>::infinity();
  return options;
}

void check(LarsOptions options, std::size_t count, float scale = 1) {
  std::vector<float> w = numbers(count, 1);
  for (float& value : w) {
    value *= scale;
  }
  // Nothing reads a momentum in the first step.
  std::vector<float> v(count, std::numeric_limits<float>::quiet_NaN());
  std::vector<double> wide_w(w.begin(), w.end());
  std::vector<double> wide_v(count);
  for (unsigned step = 0; step < 4; ++step) {
    const std::vector<float> g = numbers(count, 10 + step);
    options.first = step == 0;
    lars_step(w.data(), g.data(), options.momentum == 0 ? nullptr : v.data(), count, options);
    lars_reference(wide_w, {g.begin(), g.end()}, wide_v, options);
  }
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_NEAR(w[i], wide_w[i], 1e-6) << i << " of " << count;
    if (options.momentum != 0) {
      ASSERT_NEAR(v[i], wide_v[i], 1e-6) << i << " of " << count;
    }
  }
}

TEST(Lars, EqualsTheEquations) {
  for (const std::size_t count : kCounts) {
    check(usual(), count);
    check(usual(), count, 0);
    LarsOptions options = usual();
    options.nesterov = true;
    check(options, count);
    options = usual();
    options.momentum = 0;
    check(options, count);
    options = usual();
    options.dampening = 0.3;
    options.adapt = false;
    options.lr = 0.01;
    check(options, count);
    options = usual();
    options.least_ratio = 0.03;
    options.largest_ratio = 0.031;
    check(options, count);
    options = usual();
    options.larc = true;
    options.lr = 0.001;
    check(options, count);
  }
}

TEST(Lars, ThreadsChangeNoBit) {
  // Enough for four threads, with tensors of all sizes and one that is most of it.
  std::vector<std::size_t> counts = {0, 1, 700000, 9, 300000, 31, 50000};
  for (unsigned i = 0; i < 60; ++i) {
    counts.push_back(4096 + i);
  }
  std::vector<std::vector<float>> values[4][3];
  std::vector<LarsTensor> tensors[4];
  for (const unsigned threads : {1U, 2U, 4U}) {
    auto& mine = values[threads - 1];
    for (const std::size_t count : counts) {
      for (unsigned kind = 0; kind < 3; ++kind) {
        mine[kind].push_back(numbers(count, kind + 1));
      }
      tensors[threads - 1].push_back(
          {mine[0].back().data(), mine[1].back().data(), mine[2].back().data(), count});
    }
    lars_steps(tensors[threads - 1], usual(), threads);
    ASSERT_EQ(values[0][0], mine[0]) << threads;
    ASSERT_EQ(values[0][2], mine[2]) << threads;
  }
  std::vector<float> alone = numbers(700000, 1);
  std::vector<float> momentum = numbers(700000, 3);
  lars_step(alone.data(), values[0][1][2].data(), momentum.data(), alone.size(), usual());
  ASSERT_EQ(values[0][0][2], alone);
}

TEST(Lars, NoTensorsAreNoWork) { lars_steps({}, usual(), 4); }

TEST(Lars, AllLevelsGiveTheSameBits) {
  const VectorLevel& baseline = kBaselineLevel;
  const MomentumFactors factors = {0.3F, 0.01F, 0.9F, 0.7F, 0.2F, 0.1F};
  for (const VectorLevel* level : runnable_vector_levels()) {
    for (const std::size_t count : kCounts) {
      const std::vector<float> a = numbers(count, 1);
      const std::vector<float> b = numbers(count, 2);
      double sums[2][2][8] = {};
      baseline.add_squares(sums[0][0], sums[0][1], a.data(), b.data(), count);
      level->add_squares(sums[1][0], sums[1][1], a.data(), b.data(), count);
      for (int lane = 0; lane < 8; ++lane) {
        ASSERT_EQ(sums[0][0][lane], sums[1][0][lane]) << level->name;
        ASSERT_EQ(sums[0][1][lane], sums[1][1][lane]) << level->name;
      }
      std::vector<float> w[2] = {a, a};
      std::vector<float> m[2] = {b, b};
      const std::vector<float> g = numbers(count, 3);
      baseline.momentum_update(w[0].data(), g.data(), m[0].data(), count, factors);
      level->momentum_update(w[1].data(), g.data(), m[1].data(), count, factors);
      ASSERT_EQ(w[0], w[1]) << level->name;
      ASSERT_EQ(m[0], m[1]) << level->name;
    }
  }
}

}  // namespace
}  // namespace aiacc
