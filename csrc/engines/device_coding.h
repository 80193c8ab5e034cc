#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "csrc/cuda/device_pool.h"
#include "csrc/kernels/gpu/block_coder.h"
#include "csrc/kernels/gpu/device_selector.h"
#include "csrc/kernels/gpu/pair_adder.h"

namespace aiacc {

/// What coded all-reduces on one GPU share: kernels, and what selections know from step to step.
///
/// Threads: one at a time. The context of the device is current in whatever thread constructs it,
/// calls it or destroys it.
class DeviceCoding {
 public:
  /// Loads kernels: blocks, and throws as DeviceModule does.
  DeviceCoding(const CudaDriver& driver, std::shared_ptr<DevicePool> pool);

  const CudaDriver& driver() const { return driver_; }
  const BlockCoder& blocks() const { return blocks_; }
  const DeviceSelector& selector() const { return selector_; }
  const PairAdder& pairs() const { return pairs_; }

  /// The state of selections on a stream by where their residual is, for work on that stream;
  /// null: of those without. What they predict makes a selection faster, not another one. Waits for
  /// the GPU, and allocates, only when there are more than before.
  SelectState* state(CudaStream stream, const float* residual);

 private:
  static constexpr std::size_t kMostStates = 4096;
  static constexpr std::size_t kStatesInBlock = 64;
  struct States {
    std::vector<std::shared_ptr<DeviceBlock>> blocks;
    std::unordered_map<const float*, SelectState*> by_residual;
  };

  const CudaDriver& driver_;
  const std::shared_ptr<DevicePool> pool_;
  const BlockCoder blocks_;
  const DeviceSelector selector_;
  const PairAdder pairs_;
  std::unordered_map<CudaStream, States> states_;
};

}  // namespace aiacc
