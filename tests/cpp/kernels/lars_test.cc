// LARS on the CPU against the equations in double, and its kernels alike on all levels.

#include "csrc/kernels/lars.h"

#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/kernels/vector/level.h"
#include "tests/cpp/kernels/gpu/gpu_kernels.h"
#include "tests/cpp/kernels/gpu/optim/optimizer_check.h"

namespace aiacc {
namespace {

using LarsTest = GpuKernelsTest;  // for the memory of a GPU in software is the host's

TEST_F(LarsTest, EqualsTheEquations) {
  const auto cpu = [](const Lars::Step& step) { lars_steps(step.tensors, step.options, 1); };
  for (const auto& job : Lars::cases()) {
    const double tolerance = job.is_exact_on_cpu ? 0 : 1e-6;
    EXPECT_EQ("", check_steps<Lars>(rig_, cpu, 3, job, optimizer_sizes(), {}, tolerance));
  }
}

TEST(LarsThreadsTest, ChangeNoBit) {
  const LarsOptions usual = Lars::cases().front().options;
  // Enough for four threads, with tensors of all sizes and one that is most of it.
  std::vector<std::size_t> counts = {0, 1, 700000, 9, 300000, 31, 50000};
  for (unsigned i = 0; i < 60; ++i) {
    counts.push_back(4096 + i);
  }
  // Weights and momenta after a step.
  const auto stepped = [&](unsigned threads) {
    std::vector<std::vector<float>> weights, gradients, momenta;
    std::vector<LarsTensor> tensors;
    for (const std::size_t count : counts) {
      weights.push_back(numbers(count, 1));
      gradients.push_back(numbers(count, 2));
      momenta.push_back(numbers(count, 3));
      tensors.push_back(
          {weights.back().data(), gradients.back().data(), momenta.back().data(), count});
    }
    lars_steps(tensors, usual, threads);
    return std::pair(weights, momenta);
  };
  const auto expected = stepped(1);
  ASSERT_EQ(expected, stepped(2));
  ASSERT_EQ(expected, stepped(4));
  std::vector<float> alone = numbers(700000, 1);
  const std::vector<float> gradient = numbers(700000, 2);
  std::vector<float> momentum = numbers(700000, 3);
  lars_step(alone.data(), gradient.data(), momentum.data(), alone.size(), usual);
  ASSERT_EQ(expected.first[2], alone);
  lars_steps({}, usual, 4);
}

TEST(LarsLevelsTest, GiveTheSameBits) {
  const VectorLevel& baseline = kBaselineLevel;
  const MomentumFactors factors = {0.3F, 0.01F, 0.9F, 0.7F, 0.2F, 0.1F};
  for (const VectorLevel* level : runnable_vector_levels()) {
    for (const std::size_t count : {0, 1, 7, 8, 9, 31, 33, 515}) {
      const std::vector<float> a = numbers(count, 1);
      const std::vector<float> b = numbers(count, 2);
      double sums[2][2][8] = {};
      baseline.add_squares(sums[0][0], sums[0][1], a.data(), b.data(), count);
      level->add_squares(sums[1][0], sums[1][1], a.data(), b.data(), count);
      ASSERT_EQ(0, std::memcmp(sums[0], sums[1], sizeof sums[0])) << level->name;
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
