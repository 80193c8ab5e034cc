// The kernels of csrc/kernels/gpu/optim/factor_packing.cu on a GPU against their twins on the host,
// bit by bit. A program of its own, so that compute-sanitizer can run it: with an argument, on
// small factors. Ends with 1 and what differs.

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/optim/device_factors.h"
#include "tests/gpu/gpu_rig.h"

namespace aiacc {
namespace {

struct Shape {
  std::size_t dim;
  std::size_t number;
};

constexpr std::size_t kRoom = 3;  ///< elements between rows, matrices and triangles

/// Stacks and their triangles in one memory on both sides, which lie alike.
template <class T>
class Sides {
 public:
  Sides(GpuRig& rig, const std::vector<Shape>& shapes) : host_(elements(shapes)) {
    std::mt19937 random(7);
    std::normal_distribution<T> normal;
    for (T& value : host_) {
      value = normal(random);
    }
    device_ = std::make_unique<DeviceMemory>(rig, host_.size() * sizeof(T));
    device_->write(host_.data());
  }

  std::vector<FactorStack> on_host(const std::vector<Shape>& shapes, double enters) {
    return stacks(host_.data(), shapes, enters);
  }
  std::vector<FactorStack> on_device(const std::vector<Shape>& shapes, double enters) const {
    return stacks(static_cast<T*>(device_->pointer()), shapes, enters);
  }
  bool equal() {
    std::vector<T> got(host_.size());
    device_->read(got.data());
    return std::memcmp(got.data(), host_.data(), got.size() * sizeof(T)) == 0;
  }

 private:
  static std::size_t matrix_elements(const Shape& shape) {
    return shape.dim * (shape.dim + kRoom) + kRoom;
  }
  static std::size_t packed_elements(const Shape& shape) {
    return shape.number * shape.dim * (shape.dim + 1) / 2 + kRoom;
  }
  static std::size_t elements(const std::vector<Shape>& shapes) {
    std::size_t all = 0;
    for (const Shape& shape : shapes) {
      all += shape.number * matrix_elements(shape) + packed_elements(shape);
    }
    return all;
  }
  static std::vector<FactorStack> stacks(T* at, const std::vector<Shape>& shapes, double enters) {
    std::vector<FactorStack> made;
    for (const Shape& shape : shapes) {
      T* packed = at + shape.number * matrix_elements(shape);
      made.push_back({at,
                      packed,
                      shape.dim,
                      shape.number,
                      shape.dim + kRoom,
                      matrix_elements(shape),
                      1.0 / 3,
                      enters});
      at = packed + packed_elements(shape);
    }
    return made;
  }

  std::vector<T> host_;
  std::unique_ptr<DeviceMemory> device_;
};

/// Works in turn, so that each reads what the one before has written; how many agree, or -1.
template <class T>
int run_type(GpuRig& rig, DeviceFactors& device, const std::vector<Shape>& shapes, DataType dtype) {
  struct Job {
    FactorWork work;
    double enters;
  };
  Sides<T> sides(rig, shapes);
  int jobs = 0;
  for (const Job& job : {Job{FactorWork::kPack, 1},
                         Job{FactorWork::kUnpack, 1},
                         Job{FactorWork::kAverage, 0.05},
                         Job{FactorWork::kPack, 1},
                         Job{FactorWork::kAverage, 0.75},
                         Job{FactorWork::kAverage, 1}}) {
    const std::vector<FactorStack> stacks = sides.on_host(shapes, job.enters);
    FactorBatch batch;
    plan_factors(dtype, stacks.data(), stacks.size(), batch);
    const FactorKernel& kernel = factor_kernels()[choose_factor_kernel(job.work, dtype)];
    kernel.run(batch, batch.chunks < 3 ? batch.chunks : 3, true);
    device.run(rig.stream(), job.work, dtype, sides.on_device(shapes, job.enters));
    if (!sides.equal()) {
      std::printf("differs: %s, job %d, %zu stacks\n", kernel.name, jobs, shapes.size());
      return -1;
    }
    ++jobs;
  }
  return jobs;
}

int run(bool small) {
  GpuRig rig;
  DeviceFactors device(rig.driver());
  std::vector<std::vector<Shape>> sets = {{{1, 1}}, {{5, 3}, {64, 1}, {130, 2}, {257, 1}, {3, 9}}};
  if (!small) {
    sets.push_back({{1153, 2}, {256, 3}, {4609, 1}, {300, 1}});
    sets.push_back(std::vector<Shape>(73, {100, 1}));
  }
  int jobs = 0;
  for (const std::vector<Shape>& shapes : sets) {
    const int of_float = run_type<float>(rig, device, shapes, DataType::kFloat32);
    const int of_double = run_type<double>(rig, device, shapes, DataType::kFloat64);
    if (of_float < 0 || of_double < 0) {
      return 1;
    }
    jobs += of_float + of_double;
  }
  std::printf("%d jobs on factors agree with their twins\n", jobs);
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
