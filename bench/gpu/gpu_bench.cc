// Kernels of the core on GPU 0 for bench/gpu, which calls them by ctypes: there they take turns
// with torch's, on torch's stream and memory. All numbers are of 64 bits. A function returns 0, or
// says what is wrong and returns 1.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "csrc/kernels/batch_copier.h"
#include "csrc/kernels/gpu/block_coder.h"
#include "csrc/kernels/gpu/device_selector.h"
#include "csrc/kernels/quantise.h"
#include "tests/gpu/gpu_rig.h"

#define AIACC_BENCH extern "C" __attribute__((visibility("default")))

namespace {

struct Kernels {
  aiacc::GpuRig rig;
  aiacc::BatchCopier copier{rig.driver()};
  aiacc::BlockCoder coder{rig.driver()};
  aiacc::DeviceSelector selector{rig.driver()};
};

template <class Work>
int with_kernels(const Work& work) {
  try {
    static auto* const kernels = new Kernels;  // the driver may be gone at the end of the process
    work(*kernels);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

aiacc::BlockCode code_of(std::size_t format) {
  return {static_cast<aiacc::BlockFormat>(format), 256};
}

}  // namespace

/// Copies of the driver, one for each segment.
AIACC_BENCH int bench_copy(aiacc::CudaStream stream,
                           const aiacc::CopySegment* segments,
                           std::size_t number) {
  return with_kernels([&](Kernels& on) {
    for (const aiacc::CopySegment* segment = segments; segment != segments + number; ++segment) {
      AIACC_CUDA_CHECK(on.rig.driver(),
                       copy_async,
                       reinterpret_cast<aiacc::CudaAddress>(segment->out),
                       reinterpret_cast<aiacc::CudaAddress>(segment->in),
                       segment->count * sizeof(float),
                       stream);
    }
  });
}

/// `eighth`: scaled by 1/8.
AIACC_BENCH int bench_pack(aiacc::CudaStream stream,
                           const aiacc::CopySegment* segments,
                           std::size_t number,
                           std::size_t wire,
                           std::size_t eighth) {
  return with_kernels([&](Kernels& on) {
    aiacc::CopyJob job;
    job.wire = static_cast<aiacc::WireFormat>(wire);
    job.factor = eighth != 0 ? 0.125 : 1.0;
    on.copier.enqueue(stream, job, {segments, segments + number});
  });
}

AIACC_BENCH std::size_t bench_encoded_bytes(std::size_t count, std::size_t format) {
  return aiacc::encoded_bytes(count, code_of(format));
}

AIACC_BENCH int bench_encode(aiacc::CudaStream stream,
                             void* wire,
                             const void* in,
                             void* residual,
                             std::size_t count,
                             std::size_t format,
                             std::size_t stochastic) {
  return with_kernels([&](Kernels& on) {
    const aiacc::Rounding rounding = {stochastic != 0, 1};
    on.coder.encode(stream, wire, in, residual, count, code_of(format), 1.0F, rounding, 0);
  });
}

AIACC_BENCH int bench_decode(
    aiacc::CudaStream stream, void* out, const void* wire, std::size_t count, std::size_t format) {
  return with_kernels(
      [&](Kernels& on) { on.coder.decode(stream, out, wire, count, code_of(format), 1.0F); });
}

AIACC_BENCH int bench_decode_add(
    aiacc::CudaStream stream, void* out, const void* wire, std::size_t count, std::size_t format) {
  return with_kernels(
      [&](Kernels& on) { on.coder.decode_add(stream, out, wire, count, code_of(format)); });
}

AIACC_BENCH std::size_t bench_state_bytes() { return sizeof(aiacc::SelectState); }
AIACC_BENCH std::size_t bench_workspace_bytes(std::size_t count, std::size_t k) {
  return aiacc::select_workspace_bytes(count, k);
}

/// `state`: zeros at first; its track is what it begins with.
AIACC_BENCH int bench_select(aiacc::CudaStream stream,
                             void* pairs,
                             const float* in,
                             const float* residual,
                             float* residual_out,
                             std::size_t count,
                             std::size_t k,
                             std::size_t mode,
                             std::size_t step,
                             void* state,
                             void* workspace) {
  return with_kernels([&](Kernels& on) {
    on.selector.select(stream,
                       aiacc::plan_selection(pairs,
                                             in,
                                             residual,
                                             residual_out,
                                             count,
                                             k,
                                             1.0F,
                                             static_cast<aiacc::SelectMode>(mode),
                                             step,
                                             static_cast<aiacc::SelectState*>(state),
                                             workspace));
  });
}
