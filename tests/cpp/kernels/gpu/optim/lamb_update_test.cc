// The bodies of the CUDA kernels of LAMB, run on the host, against the equations in double.

#include "csrc/kernels/gpu/optim/lamb_update.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/optim/tensor_chunks.h"
#include "tests/cpp/kernels/gpu/optim/tensors.h"
#include "tests/cpp/kernels/lars_reference.h"

namespace aiacc {
namespace {

LambOptions usual() {
  LambOptions options;
  options.lr = 0.05;
  options.beta1 = 0.9;
  options.beta2 = 0.999;
  options.eps = 1e-6;
  options.weight_decay = 0.01;
  options.largest_ratio = std::numeric_limits<double>::infinity();
  return options;
}

/// How a launch is run.
struct Way {
  std::uint32_t norm_blocks = 3;
  std::uint32_t update_blocks = 2;
  bool backwards = false;
  std::size_t shift = 0;           ///< of every array, in elements
  bool numbers_on_device = false;  ///< learning rate and number of the step
  float clip = 1;
};

/// Tensors with gradients and means, and steps of them.
class Job {
 public:
  Job(const std::vector<std::size_t>& counts, std::size_t shift) {
    for (const std::size_t count : counts) {
      const unsigned seed = static_cast<unsigned>(weights.size());
      weights.emplace_back(numbers(count, 2 * seed), shift);
      gradients.emplace_back(numbers(count, 2 * seed + 1), shift);
      means.emplace_back(std::vector<float>(count), shift);
      squares.emplace_back(std::vector<float>(count), shift);
    }
  }

  void step(LambOptions options, const Way& way, double number) {
    const auto lr = static_cast<float>(options.lr);
    const auto steps = static_cast<float>(number);
    const bool on_device = way.numbers_on_device;
    std::vector<LambTensor> all;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      all.push_back({weights[i].data(),
                     gradients[i].data(),
                     means[i].data(),
                     squares[i].data(),
                     on_device ? &steps : nullptr,
                     on_device ? 0 : number,
                     weights[i].count()});
    }
    if (on_device) {
      options.lr = 0;
    }
    std::vector<SquareSums> sums(optim_workspace_bytes(all.size()) / sizeof(SquareSums));
    const auto batch = std::make_unique<SmallLambBatch>();
    const LambMemory memory = {
        on_device ? &lr : nullptr, way.clip == 1 ? nullptr : &way.clip, sums.data()};
    plan_lamb(all.data(), all.size(), options, memory, way.norm_blocks, *batch);
    kSmallLambKernels.first(*batch, batch->norm_blocks, way.backwards);
    EXPECT_EQ(options.adapt, (batch->needs & kSecondKernel) != 0);
    if (options.adapt) {
      kSmallLambKernels.second(*batch, std::min(batch->chunks, way.update_blocks), !way.backwards);
    }
  }

  std::vector<Array> weights;
  std::vector<Array> gradients;
  std::vector<Array> means;
  std::vector<Array> squares;
};

/// The same in double, by the equations.
struct Reference {
  std::vector<double> w;
  std::vector<double> m;
  std::vector<double> v;

  void step(const std::vector<float>& gradient, const LambOptions& o, float clip, double number) {
    std::vector<double> updates(w.size());
    const double first = o.bias_correction ? 1 - std::pow(o.beta1, number) : 1;
    const double second = o.bias_correction ? 1 - std::pow(o.beta2, number) : 1;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = static_cast<double>(clip) * gradient[i];
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
      updates[i] = m[i] / first / (std::sqrt(v[i] / second) + o.eps) + o.weight_decay * w[i];
    }
    double ratio = 1;
    if (o.adapt) {
      ratio = norm(w) > 0 && norm(updates) > 0 ? norm(w) / norm(updates) : 1;
      ratio = std::min(std::max(ratio, o.least_ratio), o.largest_ratio);
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      w[i] -= o.lr * ratio * updates[i];
    }
  }
};

const std::vector<std::size_t>& sizes() {
  static const std::vector<std::size_t> made = {
      1, 0, 3, kOptimChunk, 7, kOptimChunk + 1, 5 * kOptimChunk - 2, 31, 2 * kOptimChunk, 1030};
  return made;
}

void check(const LambOptions& options, const Way& way, float scale = 1) {
  Job job(sizes(), way.shift);
  std::vector<Reference> expected;
  for (Array& weights : job.weights) {
    for (std::size_t i = 0; i < weights.count(); ++i) {
      weights.data()[i] *= scale;
    }
    const std::vector<float> given = weights.values();
    expected.push_back({{given.begin(), given.end()},
                        std::vector<double>(given.size()),
                        std::vector<double>(given.size())});
  }
  for (int step = 1; step <= 3; ++step) {
    job.step(options, way, step);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i].step(job.gradients[i].values(), options, way.clip, step);
    }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t at = 0; at < expected[i].w.size(); ++at) {
      ASSERT_NEAR(job.weights[i].data()[at], expected[i].w[at], 2e-6) << at << " of tensor " << i;
      ASSERT_NEAR(job.means[i].data()[at], expected[i].m[at], 1e-6) << at << " of tensor " << i;
      ASSERT_NEAR(job.squares[i].data()[at], expected[i].v[at], 1e-6) << at << " of tensor " << i;
    }
  }
  ASSERT_TRUE(all_intact(job.weights) && all_intact(job.gradients));
  ASSERT_TRUE(all_intact(job.means) && all_intact(job.squares));
}

TEST(LambUpdate, EqualsTheEquations) {
  check(usual(), {});
  check(usual(), {}, 0);
  LambOptions options = usual();
  options.adapt = false;
  check(options, {});
  options = usual();
  options.bias_correction = false;
  check(options, {});
  options = usual();
  options.beta1 = 0;
  options.beta2 = 0.5;
  check(options, {});
  options = usual();
  options.least_ratio = 0.3;
  options.largest_ratio = 0.4;
  check(options, {});
}

TEST(LambUpdate, AtAnyMultipleOfFour) {
  for (const std::size_t shift : {1, 2, 3}) {
    Way way;
    way.shift = shift;
    check(usual(), way);
    LambOptions options = usual();
    options.adapt = false;
    check(options, way);
  }
}

TEST(LambUpdate, ReadsNumbersOfTheDevice) {
  Way way;
  way.numbers_on_device = true;
  way.clip = 0.25F;
  check(usual(), way);
  LambOptions options = usual();
  options.adapt = false;
  check(options, way);
  options.bias_correction = false;
  check(options, way);
}

TEST(LambUpdate, BlocksOfAnyNumberAndOrderUpdateAlike) {
  Job expected(sizes(), 0);
  expected.step(usual(), {}, 1);
  for (const std::uint32_t blocks : {1U, 2U, 5U, 12U, 1000U}) {
    for (const bool backwards : {false, true}) {
      Way way;
      way.update_blocks = blocks;
      way.backwards = backwards;
      Job job(sizes(), 0);
      job.step(usual(), way, 1);
      for (std::size_t i = 0; i < job.weights.size(); ++i) {
        ASSERT_EQ(expected.weights[i].values(), job.weights[i].values()) << blocks;
        ASSERT_EQ(expected.squares[i].values(), job.squares[i].values()) << blocks;
      }
    }
  }
}

TEST(LambUpdate, NormsOfAnyNumberOfBlocksAreTheSameNorms) {
  for (const std::uint32_t blocks : {1U, 2U, 4U, 7U, 13U, 1000U}) {
    Way way;
    way.norm_blocks = blocks;
    check(usual(), way);
  }
}

TEST(LambUpdate, RefusesWhatItCannot) {
  std::vector<float> memory(8);
  float* even = memory.data();
  float* odd = reinterpret_cast<float*>(reinterpret_cast<char*>(even) + 1);
  SmallLambBatch batch;
  const auto refused = [&](const LambTensor& tensor) -> std::string {
    try {
      plan_lamb(&tensor, 1, usual(), {}, 1, batch);
    } catch (const Error& error) {
      EXPECT_EQ(Code::kInvalidArgument, error.code());
      return error.what();
    }
    return "";
  };
  EXPECT_NE(std::string::npos,
            refused({even, even, even, odd, nullptr, 1, 1}).find("a multiple of 4"));
  EXPECT_NE(std::string::npos,
            refused({even, even, even, even, nullptr, 1, 1ULL << 43}).find("2^31"));
  EXPECT_EQ("", refused({even, even, even, even, nullptr, 1, 1}));
}

}  // namespace
}  // namespace aiacc
