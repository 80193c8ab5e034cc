#include "csrc/engines/device_coding.h"

#include <utility>

namespace aiacc {
namespace {

/// Copied by the GPU, when it has come there.
const SelectState kFresh = {};

}  // namespace

DeviceCoding::DeviceCoding(const CudaDriver& driver, std::shared_ptr<DevicePool> pool)
    : driver_(driver), pool_(std::move(pool)), blocks_(driver), selector_(driver), pairs_(driver) {}

SelectState* DeviceCoding::state(CudaStream stream, const float* residual) {
  States& states = states_[stream];
  const auto known = states.by_residual.find(residual);
  if (known != states.by_residual.end()) {
    return known->second;
  }
  if (states.by_residual.size() == kMostStates) {
    states.by_residual.clear();  // of buffers that may be gone
  }
  const std::size_t place = states.by_residual.size();
  if (place / kStatesInBlock == states.blocks.size()) {
    states.blocks.push_back(pool_->take(kStatesInBlock * sizeof(SelectState), stream));
  }
  const CudaAddress address =
      states.blocks[place / kStatesInBlock]->address + place % kStatesInBlock * sizeof(SelectState);
  AIACC_CUDA_CHECK(driver_,
                   copy_async,
                   address,
                   reinterpret_cast<CudaAddress>(&kFresh),
                   sizeof(SelectState),
                   stream);
  return states.by_residual[residual] = reinterpret_cast<SelectState*>(address);
}

}  // namespace aiacc
