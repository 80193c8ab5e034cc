#include "csrc/kernels/gpu/pair_adder.h"

#include <algorithm>

#include "csrc/kernels/gpu/add_pairs.h"

namespace aiacc {

PairAdder::PairAdder(const CudaDriver& driver, const DeviceImage& image)
    : module_(driver, image), kernel_(module_.find(kAddPairsKernel, kAddPairsThreads)) {}

void PairAdder::add(
    CudaStream stream, float* out, const void* wire, std::size_t pairs, std::size_t count) const {
  if (pairs == 0) {
    return;
  }
  const auto* values = static_cast<const float*>(wire);
  PairAddition plan = {out,
                       values,
                       reinterpret_cast<const std::uint32_t*>(values + pairs),
                       static_cast<std::uint32_t>(pairs),
                       static_cast<std::uint32_t>(count)};
  const std::size_t blocks = (pairs + kAddPairsThreads - 1) / kAddPairsThreads;
  module_.launch(kernel_,
                 stream,
                 static_cast<unsigned>(std::min<std::size_t>(blocks, kernel_.resident)),
                 kAddPairsThreads,
                 plan);
}

}  // namespace aiacc
