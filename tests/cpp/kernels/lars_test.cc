// LARS on the CPU against the equations in double, and its kernels alike on all levels.

#include "csrc/kernels/lars.h"

#include <cstddef>
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
    lars_steps(tensors[threads - 1], usual, threads);
    ASSERT_EQ(values[0][0], mine[0]) << threads;
    ASSERT_EQ(values[0][2], mine[2]) << threads;
  }
  std::vector<float> alone = numbers(700000, 1);
  std::vector<float> momentum = numbers(700000, 3);
  lars_step(alone.data(), values[0][1][2].data(), momentum.data(), alone.size(), usual);
  ASSERT_EQ(values[0][0][2], alone);
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
