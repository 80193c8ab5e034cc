// The kernels of csrc/kernels/gpu/optim on a GPU against their twins on the host, bit by bit, save
// where the GPU computes an exponential. A program of its own, so that compute-sanitizer can run
// it: with an argument, on small tensors. Ends with 1 and what differs.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/optim/device_lamb.h"
#include "csrc/kernels/gpu/optim/device_lars.h"
#include "csrc/kernels/gpu/optim/tensor_chunks.h"
#include "tests/gpu/gpu_rig.h"

namespace aiacc {
namespace {

constexpr std::size_t kRoom = 16;  ///< floats between arrays, never to be written

/// Arrays of tensors in one memory on both sides, which lie alike.
class Arrays {
 public:
  Arrays(GpuRig& rig, const std::vector<std::size_t>& counts, std::size_t kinds, std::size_t shift)
      : kinds_(kinds) {
    std::size_t floats = 0;
    for (const std::size_t count : counts) {
      for (std::size_t kind = 0; kind < kinds; ++kind) {
        begins_.push_back(floats + shift);
        floats += (count + shift + kRoom + 3) / 4 * 4;
      }
    }
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    host_.resize(floats);
    for (float& value : host_) {
      value = std::fabs(normal(random));  // as means of squares are
    }
    device_ = std::make_unique<DeviceMemory>(rig, floats * sizeof(float));
    device_->write(host_.data());
  }

  float* on_host(std::size_t tensor, std::size_t kind) {
    return host_.data() + begins_[tensor * kinds_ + kind];
  }
  float* on_device(std::size_t tensor, std::size_t kind) const {
    return static_cast<float*>(device_->pointer()) + begins_[tensor * kinds_ + kind];
  }
  bool equal(float tolerance = 0) {
    std::vector<float> got(host_.size());
    device_->read(got.data());
    if (tolerance == 0) {
      return std::memcmp(got.data(), host_.data(), got.size() * sizeof(float)) == 0;
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (!(std::fabs(got[i] - host_[i]) <= tolerance)) {
        return false;
      }
    }
    return true;
  }

 private:
  const std::size_t kinds_;
  std::vector<std::size_t> begins_;
  std::vector<float> host_;
  std::unique_ptr<DeviceMemory> device_;
};

using Sets = std::vector<std::vector<std::size_t>>;

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

/// A step by the twins, which have as many blocks for the norms.
template <class Batch>
void step_on_host(const OptimKernels<Batch>& kernels,
                  const std::vector<LarsTensor>& tensors,
                  const LarsOptions& options,
                  const float* lr,
                  unsigned norm_blocks) {
  const auto batch = std::make_unique<Batch>();
  std::vector<SquareSums> sums(optim_workspace_bytes(tensors.size()) / sizeof(SquareSums));
  plan_lars(tensors.data(), tensors.size(), options, lr, sums.data(), norm_blocks, *batch);
  if (options.adapt) {
    kernels.first(*batch, batch->norm_blocks, true);
  }
  kernels.second(*batch, batch->chunks < 3 ? batch->chunks : 3, false);
}

/// Whether some steps give the same on both sides.
bool lars_agrees(GpuRig& rig,
                 DeviceLars& lars,
                 const std::vector<std::size_t>& counts,
                 std::size_t shift,
                 LarsOptions options,
                 bool lr_on_device) {
  Arrays arrays(rig, counts, 3, shift);
  const DeviceMemory workspace(rig, optim_workspace_bytes(counts.size()));
  const auto lr = static_cast<float>(options.lr);
  DeviceMemory device_lr(rig, sizeof lr);
  device_lr.write(&lr);
  const bool moves = options.momentum != 0;
  std::vector<LarsTensor> sides[2];
  for (std::size_t i = 0; i < counts.size(); ++i) {
    sides[0].push_back({arrays.on_host(i, 0),
                        arrays.on_host(i, 1),
                        moves ? arrays.on_host(i, 2) : nullptr,
                        counts[i]});
    sides[1].push_back({arrays.on_device(i, 0),
                        arrays.on_device(i, 1),
                        moves ? arrays.on_device(i, 2) : nullptr,
                        counts[i]});
  }
  for (int step = 0; step < 3; ++step) {
    options.first = step == 0;
    const bool is_small = counts.size() <= 99;
    lars.step(rig.stream(),
              sides[1],
              options,
              lr_on_device ? static_cast<const float*>(device_lr.pointer()) : nullptr,
              workspace.pointer());
    const float* host_lr = lr_on_device ? &lr : nullptr;
    const unsigned blocks = lars.norm_blocks(counts.size());
    if (is_small) {
      step_on_host(kSmallLarsKernels, sides[0], options, host_lr, blocks);
    } else {
      step_on_host(kLargeLarsKernels, sides[0], options, host_lr, blocks);
    }
    if (!arrays.equal()) {
      return false;
    }
  }
  return true;
}

int run_lars(GpuRig& rig, const Sets& sets) {
  DeviceLars lars(rig.driver());
  std::vector<LarsOptions> every(6, usual());
  every[1].nesterov = true;
  every[2].momentum = 0;
  every[3].adapt = false;
  every[4].larc = true;
  every[5].dampening = 0.3;
  every[5].largest_ratio = 0.01;
  int jobs = 0;
  for (const std::vector<std::size_t>& counts : sets) {
    for (std::size_t number = 0; number < every.size(); ++number) {
      for (const std::size_t shift : {0, 1}) {
        for (const bool lr_on_device : {false, true}) {
          if (!lars_agrees(rig, lars, counts, shift, every[number], lr_on_device)) {
            std::printf("differs: LARS, options %zu, %zu tensors, %zu floats on, lr %s\n",
                        number,
                        counts.size(),
                        shift,
                        lr_on_device ? "on the device" : "a number");
            return -1;
          }
          ++jobs;
        }
      }
    }
  }
  return jobs;
}

template <class Batch>
void lamb_on_host(const OptimKernels<Batch>& kernels,
                  const std::vector<LambTensor>& tensors,
                  const LambOptions& options,
                  unsigned norm_blocks) {
  const auto batch = std::make_unique<Batch>();
  std::vector<SquareSums> sums(optim_workspace_bytes(tensors.size()) / sizeof(SquareSums));
  const LambMemory memory = {nullptr, nullptr, sums.data()};
  plan_lamb(tensors.data(), tensors.size(), options, memory, norm_blocks, *batch);
  kernels.first(*batch, batch->norm_blocks, true);
  if (options.adapt) {
    kernels.second(*batch, batch->chunks < 3 ? batch->chunks : 3, false);
  }
}

/// `on_device`: the learning rate, a clipping of 1 and the number of the step lie there.
bool lamb_agrees(GpuRig& rig,
                 DeviceLamb& lamb,
                 const std::vector<std::size_t>& counts,
                 std::size_t shift,
                 const LambOptions& options,
                 bool on_device) {
  Arrays arrays(rig, counts, 4, shift);
  const DeviceMemory workspace(rig, optim_workspace_bytes(counts.size()));
  DeviceMemory numbers(rig, 3 * sizeof(float));
  const auto* at = static_cast<const float*>(numbers.pointer());
  for (int step = 1; step <= 3; ++step) {
    const float values[3] = {static_cast<float>(options.lr), 1, static_cast<float>(step)};
    numbers.write(values);
    std::vector<LambTensor> sides[2];
    for (std::size_t i = 0; i < counts.size(); ++i) {
      sides[0].push_back({arrays.on_host(i, 0),
                          arrays.on_host(i, 1),
                          arrays.on_host(i, 2),
                          arrays.on_host(i, 3),
                          nullptr,
                          static_cast<double>(step),
                          counts[i]});
      sides[1].push_back({arrays.on_device(i, 0),
                          arrays.on_device(i, 1),
                          arrays.on_device(i, 2),
                          arrays.on_device(i, 3),
                          on_device ? at + 2 : nullptr,
                          static_cast<double>(step),
                          counts[i]});
    }
    const LambMemory memory = {
        on_device ? at : nullptr, on_device ? at + 1 : nullptr, workspace.pointer()};
    lamb.step(rig.stream(), sides[1], options, memory);
    const unsigned blocks = lamb.norm_blocks(counts.size());
    if (counts.size() <= SmallLambBatch::kTensors) {
      lamb_on_host(kSmallLambKernels, sides[0], options, blocks);
    } else {
      lamb_on_host(kLargeLambKernels, sides[0], options, blocks);
    }
    if (!arrays.equal(on_device ? 1e-5F : 0)) {
      return false;
    }
  }
  return true;
}

int run_lamb(GpuRig& rig, const Sets& sets) {
  DeviceLamb lamb(rig.driver());
  LambOptions options;
  options.lr = 0.03125;
  options.beta1 = 0.9;
  options.beta2 = 0.999;
  options.eps = 1e-6;
  options.weight_decay = 0.01;
  options.largest_ratio = std::numeric_limits<double>::infinity();
  std::vector<LambOptions> every(3, options);
  every[1].adapt = false;
  every[2].bias_correction = false;
  every[2].largest_ratio = 0.2;
  int jobs = 0;
  for (const std::vector<std::size_t>& counts : sets) {
    for (std::size_t number = 0; number < every.size(); ++number) {
      for (const std::size_t shift : {0, 1}) {
        for (const bool on_device : {false, true}) {
          if (!lamb_agrees(rig, lamb, counts, shift, every[number], on_device)) {
            std::printf("differs: LAMB, options %zu, %zu tensors, %zu floats on, %s\n",
                        number,
                        counts.size(),
                        shift,
                        on_device ? "numbers on the device" : "numbers");
            return -1;
          }
          ++jobs;
        }
      }
    }
  }
  return jobs;
}

int run(bool small) {
  GpuRig rig;
  Sets sets = {{1}, {1, 0, 2048, 3, 5000, 2049, 31}};
  if (!small) {
    sets.push_back({3000001, 64, 64, 1000000});
    sets.push_back(std::vector<std::size_t>(300, 4099));  // the kernels for large batches
  }
  const int lars = run_lars(rig, sets);
  if (lars <= 0) {
    return 1;
  }
  const int lamb = run_lamb(rig, sets);
  if (lamb <= 0) {
    return 1;
  }
  std::printf("%d jobs of LARS and %d of LAMB agree with their twins\n", lars, lamb);
  return 0;
}

}  // namespace
}  // namespace aiacc

int main(int argc, char**) {
  try {
    return aiacc::run(argc > 1);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
