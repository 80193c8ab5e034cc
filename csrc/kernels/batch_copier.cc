#include "csrc/kernels/batch_copier.h"

#include <algorithm>

namespace aiacc {
namespace {

constexpr std::size_t kSmallCapacity = sizeof(SmallCopyBatch::item) / sizeof(PlannedCopy);
constexpr std::size_t kLargeCapacity = sizeof(LargeCopyBatch::item) / sizeof(PlannedCopy);

}  // namespace

BatchCopier::BatchCopier(const CudaDriver& driver, const DeviceImage& image)
    : module_(driver, image) {
  for (const CopyKernel& kernel : copy_kernels()) {
    small_.push_back(module_.find(kernel.name, kCopyThreads));
    large_.push_back(module_.find(kernel.large_name, kCopyThreads));
  }
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
void BatchCopier::launch(const DeviceKernel& kernel,
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
  module_.launch(kernel, stream, blocks, kCopyThreads, batch);
}

}  // namespace aiacc
