#pragma once

// Steps of LARS and LAMB by whoever takes them (the CPU, the bodies of the CUDA kernels on the
// host, a GPU) against the equations in double, and against the bodies on the host bit by bit.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "csrc/kernels/gpu/optim/device_lamb.h"
#include "csrc/kernels/gpu/optim/device_lars.h"
#include "csrc/kernels/gpu/optim/tensor_chunks.h"
#include "tests/gpu/mirrored.h"

namespace aiacc {

/// Of any size from -1 to 1.
inline std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::vector<float> made(count);
  for (float& value : made) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1U << 23) - 1.0F;
  }
  return made;
}

using Doubles = std::vector<double>;

inline double norm(const Doubles& values) {
  double sum = 0;
  for (const double value : values) {
    sum += value * value;
  }
  return std::sqrt(sum);
}

template <class Options>
struct OptimizerCase {
  const char* name;
  Options options;
  float scale = 1;               ///< of the weights
  bool is_exact_on_cpu = false;  ///< its norms are not the kernels', but here they do not matter
};

/// A copy with other values: changed(usual, &LarsOptions::lr, 0.1, &LarsOptions::larc, true).
template <class Options, class... Changes>
Options changed(Options options, Changes... changes) {
  const auto change = [&](auto&& self, auto member, auto value, auto... rest) -> void {
    options.*member = value;
    if constexpr (sizeof...(rest) > 0) {
      self(self, rest...);
    }
  };
  change(change, changes...);
  return options;
}

/// What a step reads of memory of the device, instead of the options'; or nulls.
struct OnDevice {
  const float* lr = nullptr;
  const float* clip = nullptr;
  const float* steps = nullptr;
};

/// What is asked of a runner.
template <class Tensor, class Options>
struct OptimizerStep {
  std::vector<Tensor> tensors;
  Options options;
  OnDevice on_device;
};

struct Lars {
  using Options = LarsOptions;
  using Tensor = LarsTensor;
  using Step = OptimizerStep<Tensor, Options>;
  using Device = DeviceLars;
  using Small = SmallLarsBatch;
  using Large = LargeLarsBatch;
  /// Weights, gradients, momenta. Nothing reads a momentum in the first step.
  static constexpr std::size_t kArrays = 3;
  static constexpr float kBefore = std::numeric_limits<float>::quiet_NaN();
  static constexpr double kTolerance = 1e-6;
  static const OptimKernels<Small>& kernels(const Small&) { return kSmallLarsKernels; }
  static const OptimKernels<Large>& kernels(const Large&) { return kLargeLarsKernels; }

  static std::vector<OptimizerCase<Options>> cases() {
    Options usual;
    usual.lr = 0.5;
    usual.momentum = 0.9;
    usual.weight_decay = 0.01;
    usual.trust_coefficient = 0.02;
    usual.eps = 1e-8;
    usual.largest_ratio = std::numeric_limits<double>::infinity();
    using O = Options;
    const O larc = changed(usual, &O::larc, true);
    const O clamped = changed(usual, &O::least_ratio, 0.03, &O::largest_ratio, 0.031);
    const O one_ratio = changed(clamped, &O::least_ratio, 0.031, &O::dampening, 0.1);
    return {
        {"usual", usual},
        {"weights of zero", usual, 0},
        {"nesterov", changed(usual, &O::nesterov, true)},
        {"no momentum", changed(usual, &O::momentum, 0)},
        {"not adapted", changed(usual, &O::dampening, 0.3, &O::adapt, false, &O::lr, 0.01)},
        {"clamped", clamped},
        {"dampening, clamped", changed(usual, &O::dampening, 0.3, &O::largest_ratio, 0.01)},
        {"larc", larc},
        {"larc that clips", changed(larc, &O::lr, 0.001)},
        {"one ratio", one_ratio, 1, true},
        {"one ratio, nesterov", changed(one_ratio, &O::nesterov, true), 1, true},
    };
  }

  static Tensor tensor(
      float* const* arrays, std::size_t count, const Options& options, const OnDevice&, int) {
    return {arrays[0], arrays[1], options.momentum != 0 ? arrays[2] : nullptr, count};
  }
  static Options options_of(const Options& given, const OnDevice& on_device, int step) {
    Options options = given;
    options.first = step == 1;
    options.lr = on_device.lr != nullptr ? 0 : given.lr;
    return options;
  }
  template <class Batch>
  static void plan(const Step& step,
                   std::size_t at,
                   std::size_t count,
                   void* workspace,
                   unsigned resident,
                   Batch& batch) {
    plan_lars(step.tensors.data() + at,
              count,
              step.options,
              step.on_device.lr,
              workspace,
              resident,
              batch);
  }
  static void queue(Device& device, CudaStream stream, const Step& step, void* workspace) {
    device.step(stream, step.tensors, step.options, step.on_device.lr, workspace);
  }

  /// By the equations.
  static void reference(Doubles* arrays, const Options& o, double, int step) {
    Doubles& w = arrays[0];
    const Doubles& g = arrays[1];
    Doubles& v = arrays[2];
    double ratio = 1;
    if (o.adapt) {
      if (norm(w) > 0 && norm(g) > 0) {
        ratio = o.trust_coefficient * norm(w) / (norm(g) + o.weight_decay * norm(w) + o.eps);
      }
      ratio = std::min(std::max(ratio, o.least_ratio), o.largest_ratio);
      ratio = o.larc ? std::min(ratio / o.lr, 1.0) : ratio;
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double change = ratio * (g[i] + o.weight_decay * w[i]);
      if (o.momentum == 0) {
        w[i] -= o.lr * change;
        continue;
      }
      v[i] = step == 1 ? change : o.momentum * v[i] + (1 - o.dampening) * change;
      w[i] -= o.lr * (o.nesterov ? change + o.momentum * v[i] : v[i]);
    }
  }
};

struct Lamb {
  using Options = LambOptions;
  using Tensor = LambTensor;
  using Step = OptimizerStep<Tensor, Options>;
  using Device = DeviceLamb;
  using Small = SmallLambBatch;
  using Large = LargeLambBatch;
  /// Weights, gradients, means, means of squares.
  static constexpr std::size_t kArrays = 4;
  static constexpr float kBefore = 0;
  static constexpr double kTolerance = 2e-6;
  static const OptimKernels<Small>& kernels(const Small&) { return kSmallLambKernels; }
  static const OptimKernels<Large>& kernels(const Large&) { return kLargeLambKernels; }

  static std::vector<OptimizerCase<Options>> cases() {
    Options usual;
    usual.lr = 0.05;
    usual.beta1 = 0.9;
    usual.beta2 = 0.999;
    usual.eps = 1e-6;
    usual.weight_decay = 0.01;
    usual.largest_ratio = std::numeric_limits<double>::infinity();
    using O = Options;
    return {
        {"usual", usual},
        {"weights of zero", usual, 0},
        {"not adapted", changed(usual, &O::adapt, false)},
        {"not corrected", changed(usual, &O::bias_correction, false)},
        {"neither", changed(usual, &O::adapt, false, &O::bias_correction, false)},
        {"other betas", changed(usual, &O::beta1, 0, &O::beta2, 0.5)},
        {"clamped", changed(usual, &O::least_ratio, 0.3, &O::largest_ratio, 0.4)},
    };
  }

  static Tensor tensor(float* const* arrays,
                       std::size_t count,
                       const Options&,
                       const OnDevice& on_device,
                       int step) {
    return {arrays[0],
            arrays[1],
            arrays[2],
            arrays[3],
            on_device.steps,
            on_device.steps != nullptr ? 0.0 : step,
            count};
  }
  static Options options_of(const Options& given, const OnDevice& on_device, int) {
    Options options = given;
    options.lr = on_device.lr != nullptr ? 0 : given.lr;
    return options;
  }
  template <class Batch>
  static void plan(const Step& step,
                   std::size_t at,
                   std::size_t count,
                   void* workspace,
                   unsigned resident,
                   Batch& batch) {
    const LambMemory memory = {step.on_device.lr, step.on_device.clip, workspace};
    plan_lamb(step.tensors.data() + at, count, step.options, memory, resident, batch);
  }
  static void queue(Device& device, CudaStream stream, const Step& step, void* workspace) {
    const LambMemory memory = {step.on_device.lr, step.on_device.clip, workspace};
    device.step(stream, step.tensors, step.options, memory);
  }

  /// By the equations.
  static void reference(Doubles* arrays, const Options& o, double clip, int step) {
    Doubles& w = arrays[0];
    Doubles& m = arrays[2];
    Doubles& v = arrays[3];
    Doubles updates(w.size());
    const double first = o.bias_correction ? 1 - std::pow(o.beta1, step) : 1;
    const double second = o.bias_correction ? 1 - std::pow(o.beta2, step) : 1;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = clip * arrays[1][i];
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

/// The bodies of the kernels on the host: so many blocks, one after another in either order.
template <class Algorithm>
struct OptimizerTwin {
  std::uint32_t norm_blocks = 3;
  std::uint32_t update_blocks = 2;
  bool backwards = false;

  void operator()(const typename Algorithm::Step& step) const {
    constexpr std::size_t kMost = Algorithm::Large::kTensors;
    for (std::size_t at = 0; at < step.tensors.size(); at += kMost) {
      const std::size_t count = std::min(step.tensors.size() - at, kMost);
      if (count <= Algorithm::Small::kTensors) {
        run<typename Algorithm::Small>(step, at, count);
      } else {
        run<typename Algorithm::Large>(step, at, count);
      }
    }
  }

 private:
  template <class Batch>
  void run(const typename Algorithm::Step& step, std::size_t at, std::size_t count) const {
    const auto batch = std::make_unique<Batch>();
    std::vector<SquareSums> sums(optim_workspace_bytes(count) / sizeof(SquareSums));
    Algorithm::plan(step, at, count, sums.data(), norm_blocks, *batch);
    const OptimKernels<Batch>& kernels = Algorithm::kernels(*batch);
    if ((batch->needs & kFirstKernel) != 0) {
      kernels.first(*batch, batch->norm_blocks, backwards);
    }
    if ((batch->needs & kSecondKernel) != 0) {
      kernels.second(*batch, std::min(batch->chunks, update_blocks), !backwards);
    }
  }
};

/// Steps on the device of a rig.
template <class Algorithm>
class OptimizerOnDevice {
 public:
  static constexpr std::size_t kMostTensors = 1000;

  OptimizerOnDevice(GpuRig& rig, typename Algorithm::Device& device)
      : rig_(rig), device_(device), workspace_(rig, optim_workspace_bytes(kMostTensors)) {}

  void operator()(const typename Algorithm::Step& step) const {
    Algorithm::queue(device_, rig_.stream(), step, workspace_.pointer());
  }

 private:
  GpuRig& rig_;
  typename Algorithm::Device& device_;
  const DeviceMemory workspace_;
};

/// Elements of tensors: none, less than an access, chunks and parts of them.
inline const std::vector<std::size_t>& optimizer_sizes() {
  static const std::vector<std::size_t> sizes = {1,
                                                 0,
                                                 3,
                                                 kOptimChunk,
                                                 7,
                                                 kOptimChunk + 1,
                                                 5 * kOptimChunk - 2,
                                                 8,
                                                 31,
                                                 2 * kOptimChunk,
                                                 9,
                                                 33,
                                                 515,
                                                 1030};
  return sizes;
}

/// Arrays of tensors, each with room around it.
template <class Algorithm>
class OptimizerArrays {
 public:
  OptimizerArrays(GpuRig& rig,
                  const std::vector<std::size_t>& sizes,
                  std::size_t shift,
                  float scale)
      : sizes_(sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::vector<float> weights = numbers(sizes[i], 2 * static_cast<unsigned>(i));
      for (float& weight : weights) {
        weight *= scale;
      }
      arrays_.emplace_back(rig, weights, shift);
      while (arrays_.size() % Algorithm::kArrays != 0) {
        arrays_.emplace_back(rig, std::vector<float>(sizes[i], Algorithm::kBefore), shift);
      }
    }
  }

  /// New ones for both sides, which are alike from now on.
  void set_gradients(unsigned step) {
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      array(i, 1).set(numbers(sizes_[i], 100 * step + 2 * static_cast<unsigned>(i) + 1));
    }
    for (Mirrored<float>& one : arrays_) {
      one.write();
    }
  }
  float* host(std::size_t tensor, std::size_t kind) { return array(tensor, kind).host(); }
  /// Step `number` of one side.
  typename Algorithm::Step step(bool on_device,
                                const typename Algorithm::Options& options,
                                const OnDevice& there,
                                int number) {
    typename Algorithm::Step made = {{}, Algorithm::options_of(options, there, number), there};
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      float* arrays[Algorithm::kArrays];
      for (std::size_t kind = 0; kind < Algorithm::kArrays; ++kind) {
        arrays[kind] = on_device ? array(i, kind).device() : host(i, kind);
      }
      made.tensors.push_back(Algorithm::tensor(arrays, sizes_[i], options, there, number));
    }
    return made;
  }
  bool equal(double tolerance = 0) {
    return std::all_of(
        arrays_.begin(), arrays_.end(), [=](auto& one) { return one.equal(tolerance); });
  }

 private:
  Mirrored<float>& array(std::size_t tensor, std::size_t kind) {
    return arrays_[tensor * Algorithm::kArrays + kind];
  }

  const std::vector<std::size_t> sizes_;
  std::deque<Mirrored<float>> arrays_;
};

/// Where a step finds what it needs.
struct OptimizerPlace {
  std::size_t shift = 0;           ///< of all arrays, in elements, from an aligned address
  bool numbers_on_device = false;  ///< learning rate, clipping by a quarter, number of the step
};

/// Three steps by `runner`, which adds up norms in the order of so many blocks. They have to differ
/// by `tolerance` at most from the bodies on the host, which have to be close to the equations.
/// What is wrong, or "".
template <class Algorithm, class Runner>
std::string check_steps(GpuRig& rig,
                        const Runner& runner,
                        std::uint32_t norm_blocks,
                        const OptimizerCase<typename Algorithm::Options>& job,
                        const std::vector<std::size_t>& sizes,
                        const OptimizerPlace& place,
                        double tolerance = 0) {
  const OptimizerTwin<Algorithm> twin = {norm_blocks};
  OptimizerArrays<Algorithm> arrays(rig, sizes, place.shift, job.scale);
  const float clip = place.numbers_on_device ? 0.25F : 1.0F;
  Mirrored<float> numbers_there(rig, {static_cast<float>(job.options.lr), clip, 0});
  std::vector<Doubles> wide;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (std::size_t kind = 0; kind < Algorithm::kArrays; ++kind) {
      wide.emplace_back(arrays.host(i, kind), arrays.host(i, kind) + sizes[i]);
    }
  }
  for (int step = 1; step <= 3; ++step) {
    arrays.set_gradients(static_cast<unsigned>(step));
    numbers_there.host()[2] = static_cast<float>(step);
    numbers_there.write();
    for (const bool on_device : {false, true}) {
      const float* const at = on_device ? numbers_there.device() : numbers_there.host();
      const OnDevice there = place.numbers_on_device ? OnDevice{at, at + 1, at + 2} : OnDevice{};
      const auto asked = arrays.step(on_device, job.options, there, step);
      on_device ? runner(asked) : twin(asked);
    }
    if (!arrays.equal(tolerance)) {
      return std::string(job.name) + ": step " + std::to_string(step) +
             " differs from the bodies, or wrote around the arrays";
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Doubles* const expected = &wide[i * Algorithm::kArrays];
      expected[1].assign(arrays.host(i, 1), arrays.host(i, 1) + sizes[i]);
      Algorithm::reference(expected, job.options, clip, step);
      for (std::size_t kind = 0; kind < Algorithm::kArrays; ++kind) {
        for (std::size_t at = 0; at < sizes[i]; ++at) {
          const double wrong = std::fabs(arrays.host(i, kind)[at] - expected[kind][at]);
          const double allowed = kind == 0 ? Algorithm::kTolerance : 1e-6;
          if (!(wrong <= allowed) && !std::isnan(expected[kind][at])) {
            return std::string(job.name) + ": step " + std::to_string(step) + ", element " +
                   std::to_string(at) + " of array " + std::to_string(kind) + " of tensor " +
                   std::to_string(i) + " is off by " + std::to_string(wrong);
          }
        }
      }
    }
  }
  return "";
}

}  // namespace aiacc
