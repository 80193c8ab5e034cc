// LARS on the CPU against the equations in double, and its kernels alike on all levels.

#include "csrc/kernels/lars.h"

#include <cstddef>
#include <tuple>
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

TEST_F(LarsTest, ThreadsChangeNoBit) {
  const LarsOptions usual = Lars::cases().front().options;
  // Enough for four threads, with tensors of all sizes and one that is most of it.
  std::vector<std::size_t> counts = {0, 1, 700000, 9, 300000, 31, 50000};
  for (unsigned i = 0; i < 60; ++i) {
    counts.push_back(4096 + i);
  }
  OptimizerArrays<Lars> arrays(rig_, counts, 0, 1);
  int number = 0;
  for (const unsigned threads : {1, 2, 4}) {
    arrays.set_gradients(++number);
    const auto expected = arrays.step(false, usual, {}, number);
    for (const auto& [weights, gradient, momentum, count] : expected.tensors) {
      lars_step(weights, gradient, momentum, count, expected.options);
    }
    const auto got = arrays.step(true, usual, {}, number);
    lars_steps(got.tensors, got.options, threads);
    ASSERT_TRUE(arrays.equal()) << threads << " threads";
  }
  lars_steps({}, usual, 4);
}

TEST(LarsLevelsTest, GiveTheSameBits) {
  const auto step = [](const VectorLevel& level, std::size_t count) {
    const MomentumFactors factors = {0.3F, 0.01F, 0.9F, 0.7F, 0.2F, 0.1F};
    std::vector<float> weights = numbers(count, 1);
    std::vector<float> momenta = numbers(count, 2);
    const std::vector<float> gradients = numbers(count, 3);
    std::vector<double> sums(16);
    level.add_squares(&sums[0], &sums[8], weights.data(), momenta.data(), count);
    level.momentum_update(weights.data(), gradients.data(), momenta.data(), count, factors);
    return std::tuple(sums, weights, momenta);
  };
  for (const VectorLevel* level : runnable_vector_levels()) {
    for (const std::size_t count : {0, 1, 7, 8, 9, 31, 33, 515}) {
      ASSERT_EQ(step(kBaselineLevel, count), step(*level, count)) << level->name;
    }
  }
}

}  // namespace
}  // namespace aiacc
