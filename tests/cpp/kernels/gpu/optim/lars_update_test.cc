// The bodies of the CUDA kernels of LARS, run on the host, against the equations in double and
// against the CPU's step.

#include "csrc/kernels/gpu/optim/lars_update.h"

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

/// How a launch is run: its twin has to give the same in every way.
struct Way {
  std::uint32_t norm_blocks = 3;
  std::uint32_t update_blocks = 2;
  bool backwards = false;
  std::size_t shift = 0;  ///< of every array, in elements
  bool lr_on_device = false;
};

/// Tensors with gradients and momenta, and steps of them.
class Job {
 public:
  Job(const std::vector<std::size_t>& counts, std::size_t shift) {
    for (const std::size_t count : counts) {
      const unsigned seed = static_cast<unsigned>(weights.size());
      weights.emplace_back(numbers(count, 3 * seed), shift);
      gradients.emplace_back(numbers(count, 3 * seed + 1), shift);
      // Nothing reads a momentum in the first step.
      momenta.emplace_back(std::vector<float>(count, std::numeric_limits<float>::quiet_NaN()),
                           shift);
    }
  }

  std::vector<LarsTensor> tensors(bool with_momentum) {
    std::vector<LarsTensor> made;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      made.push_back({weights[i].data(),
                      gradients[i].data(),
                      with_momentum ? momenta[i].data() : nullptr,
                      weights[i].count()});
    }
    return made;
  }

  void step(LarsOptions options, const Way& way) {
    const std::vector<LarsTensor> all = tensors(options.momentum != 0);
    const auto lr = static_cast<float>(options.lr);
    if (way.lr_on_device) {
      options.lr = 0;
    }
    std::vector<SquareSums> sums(optim_workspace_bytes(all.size()) / sizeof(SquareSums));
    const auto batch = std::make_unique<SmallLarsBatch>();
    plan_lars(all.data(),
              all.size(),
              options,
              way.lr_on_device ? &lr : nullptr,
              sums.data(),
              way.norm_blocks,
              *batch);
    if (options.adapt) {
      kSmallLarsKernels.first(*batch, batch->norm_blocks, way.backwards);
    }
    kSmallLarsKernels.second(*batch, std::min(batch->chunks, way.update_blocks), !way.backwards);
  }

  bool intact() const {
    return all_intact(weights) && all_intact(gradients) && all_intact(momenta);
  }

  std::vector<Array> weights;
  std::vector<Array> gradients;
  std::vector<Array> momenta;
};

const std::vector<std::size_t>& sizes() {
  static const std::vector<std::size_t> made = {
      1, 0, 3, kOptimChunk, 7, kOptimChunk + 1, 5 * kOptimChunk - 2, 31, 2 * kOptimChunk, 1030};
  return made;
}

void check(LarsOptions options, const Way& way, float scale = 1) {
  Job job(sizes(), way.shift);
  std::vector<std::vector<double>> w;
  std::vector<std::vector<double>> v;
  for (Array& weights : job.weights) {
    for (std::size_t i = 0; i < weights.count(); ++i) {
      weights.data()[i] *= scale;
    }
    w.emplace_back(weights.data(), weights.data() + weights.count());
    v.emplace_back(weights.count());
  }
  for (int step = 0; step < 3; ++step) {
    options.first = step == 0;
    job.step(options, way);
    for (std::size_t i = 0; i < w.size(); ++i) {
      const std::vector<float> gradient = job.gradients[i].values();
      lars_reference(w[i], {gradient.begin(), gradient.end()}, v[i], options);
    }
  }
  for (std::size_t i = 0; i < w.size(); ++i) {
    for (std::size_t at = 0; at < w[i].size(); ++at) {
      ASSERT_NEAR(job.weights[i].data()[at], w[i][at], 1e-6) << at << " of tensor " << i;
      if (options.momentum != 0) {
        ASSERT_NEAR(job.momenta[i].data()[at], v[i][at], 1e-6) << at << " of tensor " << i;
      }
    }
  }
  ASSERT_TRUE(job.intact());
}

TEST(LarsUpdate, EqualsTheEquations) {
  check(usual(), {});
  check(usual(), {}, 0);
  LarsOptions options = usual();
  options.nesterov = true;
  check(options, {});
  options = usual();
  options.momentum = 0;
  check(options, {});
  options = usual();
  options.dampening = 0.3;
  options.adapt = false;
  options.lr = 0.01;
  check(options, {});
  options = usual();
  options.least_ratio = 0.03;
  options.largest_ratio = 0.031;
  check(options, {});
  options = usual();
  options.larc = true;
  options.lr = 0.001;
  check(options, {});
}

TEST(LarsUpdate, AtAnyMultipleOfFour) {
  for (const std::size_t shift : {1, 2, 3}) {
    Way way;
    way.shift = shift;
    check(usual(), way);
  }
}

TEST(LarsUpdate, ReadsALearningRateOfTheDevice) {
  Way way;
  way.lr_on_device = true;
  LarsOptions options = usual();
  options.nesterov = true;
  check(options, way);
  options = usual();
  options.larc = true;
  options.lr = 0.001;
  check(options, way);
}

TEST(LarsUpdate, BlocksOfAnyNumberAndOrderUpdateAlike) {
  Job expected(sizes(), 0);
  LarsOptions options = usual();
  options.first = true;
  expected.step(options, {});
  for (const std::uint32_t blocks : {1U, 2U, 5U, 12U, 1000U}) {
    for (const bool backwards : {false, true}) {
      Way way;
      way.update_blocks = blocks;
      way.backwards = backwards;
      Job job(sizes(), 0);
      job.step(options, way);
      for (std::size_t i = 0; i < job.weights.size(); ++i) {
        ASSERT_EQ(expected.weights[i].values(), job.weights[i].values()) << blocks;
        ASSERT_EQ(expected.momenta[i].values(), job.momenta[i].values()) << blocks;
      }
    }
  }
}

TEST(LarsUpdate, NormsOfAnyNumberOfBlocksAreTheSameNorms) {
  LarsOptions options = usual();
  options.first = true;
  for (const std::uint32_t blocks : {1U, 2U, 4U, 7U, 13U, 1000U}) {
    Way way;
    way.norm_blocks = blocks;
    check(options, way);
  }
}

/// Where the ratio is the same, so is every bit.
TEST(LarsUpdate, GivesTheBitsOfTheCpu) {
  LarsOptions options = usual();
  options.least_ratio = 0.031;
  options.largest_ratio = 0.031;
  options.dampening = 0.1;
  for (const bool nesterov : {false, true}) {
    options.nesterov = nesterov;
    Job gpu(sizes(), 0);
    Job cpu(sizes(), 0);
    for (int step = 0; step < 3; ++step) {
      options.first = step == 0;
      gpu.step(options, {});
      lars_steps(cpu.tensors(true), options, 1);
      for (std::size_t i = 0; i < gpu.weights.size(); ++i) {
        ASSERT_EQ(cpu.weights[i].values(), gpu.weights[i].values()) << step;
        ASSERT_EQ(cpu.momenta[i].values(), gpu.momenta[i].values()) << step;
      }
    }
  }
}

TEST(LarsUpdate, EveryPartOfASumHasAPlaceOfItsOwn) {
  Job job(sizes(), 0);
  const std::vector<LarsTensor> all = job.tensors(true);
  SmallLarsBatch batch;
  plan_lars(all.data(), all.size(), usual(), nullptr, nullptr, 1000, batch);
  for (std::uint32_t blocks = 1; blocks <= batch.chunks; ++blocks) {
    std::vector<int> users(blocks + batch.items);
    std::uint32_t seen = 0;
    for (std::uint32_t block = 0; block < blocks; ++block) {
      each_item(batch, block, blocks, [&](std::uint32_t item, std::uint32_t, std::uint32_t) {
        ++users.at(place_of(block, item));
      });
      for (; seen < first_chunk_of(block + 1, blocks, batch.chunks); ++seen) {
        ASSERT_EQ(block, block_of(seen, blocks, batch.chunks));
      }
    }
    for (const int user : users) {
      ASSERT_LE(user, 1) << blocks;
    }
    ASSERT_EQ(batch.chunks, seen);
  }
}

TEST(LarsUpdate, RefusesWhatItCannot) {
  std::vector<float> memory(8);
  float* odd = reinterpret_cast<float*>(reinterpret_cast<char*>(memory.data()) + 1);
  SmallLarsBatch batch;
  const auto refused = [&](const LarsTensor& tensor) -> std::string {
    try {
      plan_lars(&tensor, 1, usual(), nullptr, nullptr, 1, batch);
    } catch (const Error& error) {
      EXPECT_EQ(Code::kInvalidArgument, error.code());
      return error.what();
    }
    return "";
  };
  float* even = memory.data();
  EXPECT_NE(std::string::npos, refused({even, odd, even, 1}).find("a multiple of 4"));
  EXPECT_NE(std::string::npos, refused({even, even, nullptr, 1}).find("memory for its momentum"));
  EXPECT_NE(std::string::npos, refused({even, even, even, 1ULL << 43}).find("2^31"));
  EXPECT_EQ("", refused({even, even, even, 1}));
}

}  // namespace
}  // namespace aiacc
