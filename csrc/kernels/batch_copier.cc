#include "csrc/kernels/batch_copier.h"

#include <algorithm>
#include <string>

namespace aiacc {
namespace {

constexpr std::size_t kSmallCapacity = sizeof(SmallCopyBatch::item) / sizeof(PlannedCopy);
constexpr std::size_t kLargeCapacity = sizeof(LargeCopyBatch::item) / sizeof(PlannedCopy);

CudaModule load(const CudaDriver& driver, const DeviceImage& image) {
  if (image.data == nullptr) {
    throw Error(
        Code::kUnsupported,
        "[cuda] this build has no CUDA kernels (expected nvcc at build time); rebuild aiacc "
        "where a CUDA toolkit is installed");
  }
  CudaModule module = nullptr;
  try {
    AIACC_CUDA_CHECK(driver, module_load, &module, image.data);
  } catch (const Error& error) {
    CudaDevice device = 0;
    int major = 0;
    int minor = 0;
    int version = 0;
    driver.context_device(&device);
    driver.device_attribute(&major, kCudaCapabilityMajor, device);
    driver.device_attribute(&minor, kCudaCapabilityMinor, device);
    driver.driver_version(&version);
    throw Error(error.code(),
                std::string(error.what()) + ": the kernels do not suit device " +
                    std::to_string(device) + " (compute capability " + std::to_string(major) + "." +
                    std::to_string(minor) + ", driver for CUDA " + std::to_string(version / 1000) +
                    "." + std::to_string(version % 1000 / 10) +
                    "); update the driver, or rebuild aiacc with AIACC_CUDA_ARCHITECTURES=" +
                    std::to_string(major * 10 + minor));
  }
  return module;
}

}  // namespace

BatchCopier::BatchCopier(const CudaDriver& driver, const DeviceImage& image)
    : driver_(driver), module_(load(driver, image)) {
  CudaDevice device = 0;
  int multiprocessors = 0;
  AIACC_CUDA_CHECK(driver_, context_device, &device);
  AIACC_CUDA_CHECK(driver_, device_attribute, &multiprocessors, kCudaMultiprocessors, device);
  for (const CopyKernel& kernel : copy_kernels()) {
    small_.push_back(find(kernel.name, multiprocessors));
    large_.push_back(find(kernel.large_name, multiprocessors));
  }
}

BatchCopier::~BatchCopier() { AIACC_CUDA_LOG(driver_, module_unload, module_); }

BatchCopier::Kernel BatchCopier::find(const char* name, int multiprocessors) {
  Kernel kernel;
  int blocks = 0;
  AIACC_CUDA_CHECK(driver_, module_get_function, &kernel.function, module_, name);
  AIACC_CUDA_CHECK(driver_, blocks_per_multiprocessor, &blocks, kernel.function, kCopyThreads, 0);
  kernel.resident = static_cast<unsigned>(std::max(1, blocks * multiprocessors));
  return kernel;
}

void BatchCopier::enqueue(CudaStream stream,
                          const CopyJob& job,
                          const std::vector<CopySegment>& segments,
                          CopyReport* reports) {
  const std::size_t chosen = choose_copy_kernel(job, segments.data(), segments.size());
  const CopyKernel& shape = copy_kernels()[chosen];
  for (std::size_t at = 0; at < segments.size(); at += kLargeCapacity) {
    const std::size_t count = std::min(segments.size() - at, kLargeCapacity);
    const CopySegment* first = segments.data() + at;
    CopyReport* report = job.check && reports != nullptr ? reports + at : nullptr;
    if (count <= kSmallCapacity) {
      launch(small_[chosen], shape, stream, job, first, count, report, small_batch_);
    } else {
      launch(large_[chosen], shape, stream, job, first, count, report, large_batch_);
    }
  }
}

template <class Batch>
void BatchCopier::launch(const Kernel& kernel,
                         const CopyKernel& shape,
                         CudaStream stream,
                         const CopyJob& job,
                         const CopySegment* segments,
                         std::size_t count,
                         CopyReport* reports,
                         Batch& batch) {
  plan_copies(shape, job, segments, count, reports, batch);
  if (batch.chunks == 0) {
    return;
  }
  // As many blocks as run at a time: each has an equal share, so there is no last wave of a few.
  const unsigned blocks = std::min(batch.chunks, kernel.resident);
  void* arguments[] = {&batch};
  AIACC_CUDA_CHECK(driver_,
                   launch,
                   kernel.function,
                   blocks,
                   1,
                   1,
                   kCopyThreads,
                   1,
                   1,
                   0,
                   stream,
                   static_cast<void**>(arguments),
                   nullptr);
}

}  // namespace aiacc
