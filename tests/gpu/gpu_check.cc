// The kernels on a GPU against what the tests in tests/cpp/kernels hold their bodies on the host
// to, bit by bit save where the GPU computes an exponential. A program of its own, so that
// compute-sanitizer can run it:
//
//     gpu_check copies|codes|selections|lars|lamb|factors [small]
//
// Ends with 1 and what differs.

#include <cstddef>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/kernels/gpu/device_selector.h"
#include "csrc/kernels/gpu/pair_adder.h"
#include "tests/cpp/kernels/copy_check.h"
#include "tests/cpp/kernels/gpu/block_code_check.h"
#include "tests/cpp/kernels/gpu/optim/factor_check.h"
#include "tests/cpp/kernels/gpu/optim/optimizer_check.h"
#include "tests/cpp/kernels/gpu/selection_check.h"

namespace aiacc {
namespace {

using Sizes = std::vector<std::size_t>;
constexpr std::size_t kLarge = 1000003;

/// Throws what differs, else counts a job.
class Jobs {
 public:
  void add(const std::string& what_differs) {
    if (!what_differs.empty()) {
      throw std::runtime_error(what_differs);
    }
    ++count_;
  }
  int count() const { return count_; }

 private:
  int count_ = 0;
};

void check_all_copies(GpuRig& rig, Jobs& jobs, bool small) {
  BatchCopier copier(rig.driver());
  const auto run = [&](const auto&... arguments) { copier.enqueue(rig.stream(), arguments...); };
  Sizes sizes = {0, 1, 2, 7, 255, 256, 257, 4099};
  if (!small) {
    sizes.insert(sizes.end(), 200, 33);  // the kernel for large batches
    sizes.push_back(kLarge);
  }
  unsigned seed = 0;
  for (const CopyJob& job : copy_jobs()) {
    jobs.add(check_copies(rig, run, job, sizes, ++seed));
  }
}

void check_all_codes(GpuRig& rig, Jobs& jobs, bool small) {
  const BlockCoder coder(rig.driver());
  std::vector<BlockCodeCase> cases =
      block_code_cases(small ? Sizes{1, 127, 5000} : Sizes{1, 127, 1024, 5000});
  for (const BlockFormat format : block_formats()) {
    if (!small) {
      cases.push_back({{format, 256}, kLarge});
    }
  }
  for (const BlockCodeCase& job : cases) {
    jobs.add(check_block_code(rig, coder, job));
  }
}

void check_all_selections(GpuRig& rig, Jobs& jobs, bool small) {
  const DeviceSelector selector(rig.driver());
  const PairAdder adder(rig.driver());
  const auto run = [&](const SelectPlan& plan) { selector.select(rig.stream(), plan); };
  const Sizes sizes = small ? Sizes{1, 127, 5000} : Sizes{1, 127, 1024, 5000, kLarge};
  for (const std::size_t count : sizes) {
    for (const std::size_t k : {std::size_t{1}, (count + 99) / 100, count}) {
      for (const SelectMode mode : kGpuSelectModes) {
        for (const std::size_t shift : {0, 1}) {
          for (const Feedback feedback : kFeedbacks) {
            if (count > 5000 && (shift != 0 || feedback == Feedback::kNone)) {
              continue;  // the smaller ones tell it
            }
            SelectionOfBoth both(rig, {mode, count, k, feedback, shift});
            for (std::uint32_t step = 0; step < 6; ++step) {
              // Ties in one step, and what is not finite in another.
              std::vector<float> in =
                  elements_of(step == 4 ? Shape::kConstant : Shape::kGaussian, count, step);
              in[count / 3] = step == 3 ? INFINITY : in[count / 3];
              jobs.add(both.step(in, run));
            }
          }
        }
      }
      jobs.add(check_sum_of_pairs(rig, adder, count, k));
    }
  }
}

template <class Algorithm>
void check_all_steps(GpuRig& rig, Jobs& jobs, bool small) {
  typename Algorithm::Device device(rig.driver());
  const OptimizerOnDevice<Algorithm> steps(rig, device);
  const auto cases = Algorithm::cases();
  std::vector<Sizes> sets = {{1}, optimizer_sizes()};
  if (!small) {
    sets.push_back({kLarge, 64, 64, 300000});
    sets.push_back(Sizes(Algorithm::Small::kTensors + 201, 515));  // kernels for large batches
  }
  for (const Sizes& sizes : sets) {
    for (const auto& job : cases) {
      if (sizes.front() == kLarge && &job != &cases.front()) {
        break;
      }
      for (const std::size_t shift : {0, 1}) {
        for (const bool on_device : {false, true}) {
          // LAMB takes powers of numbers that lie on the device.
          const double tolerance = on_device && Algorithm::kArrays == 4 ? 1e-5 : 0;
          const unsigned norm_blocks = device.norm_blocks(sizes.size());
          jobs.add(check_steps<Algorithm>(
              rig, steps, norm_blocks, job, sizes, {shift, on_device}, tolerance));
        }
      }
    }
  }
}

void check_all_factors(GpuRig& rig, Jobs& jobs, bool small) {
  DeviceFactors device(rig.driver());
  const auto run = [&](const auto&... arguments) { device.run(rig.stream(), arguments...); };
  std::vector<FactorShapes> sets = {{{1, 1}}, {{5, 3}, {64, 1}, {130, 2}, {257, 1}, {3, 9}}};
  if (!small) {
    sets.push_back(factor_shapes());
    sets.push_back({{1153, 2}, {256, 3}, {4609, 1}, {300, 1}});
    sets.push_back(FactorShapes(73, {100, 1}));
  }
  for (const FactorShapes& shapes : sets) {
    for (const FactorJob& job : kFactorJobs) {
      jobs.add(check_factors<float>(rig, run, shapes, job));
      jobs.add(check_factors<double>(rig, run, shapes, job));
    }
  }
}

int run(const std::string& group, bool small) {
  const std::map<std::string, std::function<void(GpuRig&, Jobs&, bool)>> groups = {
      {"copies", check_all_copies},
      {"codes", check_all_codes},
      {"selections", check_all_selections},
      {"lars", check_all_steps<Lars>},
      {"lamb", check_all_steps<Lamb>},
      {"factors", check_all_factors}};
  GpuRig rig;
  Jobs jobs;
  groups.at(group)(rig, jobs, small);
  std::printf("%d jobs on %s agree with their twins\n", jobs.count(), group.c_str());
  return 0;
}

}  // namespace
}  // namespace aiacc

int main(int argc, char** argv) {
  try {
    return aiacc::run(argc > 1 ? argv[1] : "", argc > 2);
  } catch (const std::exception& error) {
    std::printf("differs or fails: %s\n", error.what());
    return 1;
  }
}
