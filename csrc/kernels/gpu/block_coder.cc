#include "csrc/kernels/gpu/block_coder.h"

#include <algorithm>

namespace aiacc {
namespace {

constexpr std::uint64_t kWarps = kBlockCodeThreads / kWarpThreads;

std::size_t number_of(const BlockCode& code) { return static_cast<std::size_t>(code.format); }

}  // namespace

BlockCoder::BlockCoder(const CudaDriver& driver, const DeviceImage& image)
    : module_(driver, image) {
  for (const BlockCodeKernels& kernels : block_code_kernels()) {
    encode_.push_back(module_.find(kernels.encode_name, kBlockCodeThreads));
    decode_.push_back(module_.find(kernels.decode_name, kBlockCodeThreads));
  }
}

void BlockCoder::encode(CudaStream stream,
                        void* wire,
                        const void* in,
                        void* residual,
                        std::size_t count,
                        const BlockCode& code,
                        float factor,
                        const Rounding& rounding,
                        std::uint64_t first_index) const {
  const BlockEncoding plan =
      plan_encoding(wire, in, residual, count, code, factor, rounding, first_index);
  launch(encode_[number_of(code)], stream, plan);
}

void BlockCoder::decode(CudaStream stream,
                        void* out,
                        const void* wire,
                        std::size_t count,
                        const BlockCode& code,
                        float factor) const {
  const BlockDecoding plan = plan_decoding(out, wire, count, code, factor, false);
  launch(decode_[number_of(code)], stream, plan);
}

void BlockCoder::decode_add(CudaStream stream,
                            void* out,
                            const void* wire,
                            std::size_t count,
                            const BlockCode& code) const {
  const BlockDecoding plan = plan_decoding(out, wire, count, code, 1.0F, true);
  launch(decode_[number_of(code)], stream, plan);
}

template <class Plan>
void BlockCoder::launch(const DeviceKernel& kernel, CudaStream stream, Plan plan) const {
  const std::uint64_t blocks = (work_items(plan) + kWarps - 1) / kWarps;
  if (blocks == 0) {
    return;
  }
  // As many as run at a time: the warps take every so-manieth item.
  const auto running = static_cast<unsigned>(std::min<std::uint64_t>(blocks, kernel.resident));
  module_.launch(kernel, stream, running, kBlockCodeThreads, plan);
}

}  // namespace aiacc
