#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/engines/coding.h"
#include "csrc/engines/device_coding.h"
#include "csrc/engines/device_engine.h"

namespace aiacc {

/// One all-reduce of float32 on a GPU that travel coded. Memory of the device.
struct DeviceCodedReduce {
  const float* given;  ///< what this rank gives; may be `values`, else no overlap
  float* values;       ///< the sum
  float* residual;     ///< error feedback of as many elements; null: none
  std::size_t count;   ///< at least one
  Coding coding;       ///< in blocks, or the largest
  std::uint64_t seed;  ///< of what this rank leaves to chance
};

/// What coded_all_reduce (coded_all_reduce.h) does, by operations of an engine for GPUs and by
/// kernels: the same exchange, the same bits, except of a dense sum of more than two ranks beyond
/// the break-even density, which the engine adds up in an order of its own.
///
/// Everything is queued, nothing waits for the GPU: `encode`; then `issue` and `go_on` until there
/// is no other operation. So several, each on a lane of its own, can be issued together
/// (DeviceEngine::begin_group). Called once each, in this order, by the issuing thread, in a
/// Device::Scope; they throw what engine and CUDA throw. All that is pointed to stays until the
/// lane's stream is past it.
class DeviceCodedAllReduce {
 public:
  /// Bytes that it needs besides, equal on all ranks: the same parts of such memory travel.
  static std::size_t memory_bytes(std::size_t count, const Coding& coding, std::size_t ranks);

  /// In the engine this is number `rank` of `ranks`. `memory`: at a multiple of 256. What is given
  /// outlives this.
  DeviceCodedAllReduce(DeviceCoding& kernels,
                       DeviceEngine& engine,
                       int lane,
                       const DeviceCodedReduce& reduce,
                       std::size_t rank,
                       std::size_t ranks,
                       std::byte* memory);

  /// Kernels before the first operation, on a stream after which that of the lane will come.
  /// Selections of a residual are always on the same one, or those streams have an order.
  void encode(CudaStream stream);
  /// The next operation: calls of the engine, and nothing else. Nothing if there is none.
  void issue();
  /// Kernels after it, on the stream of the lane. Whether another operation follows.
  bool go_on();

 private:
  void add_shards(CudaStream stream);
  void add_pairs(CudaStream stream, const std::byte* from, std::size_t ranks);

  DeviceCoding& kernels_;
  DeviceEngine& engine_;
  const CudaDriver& driver_;
  const int lane_;
  const DeviceCodedReduce reduce_;
  const std::size_t rank_;
  const std::size_t ranks_;
  const BlockCode code_;        ///< of what is in blocks
  const std::size_t selected_;  ///< else
  PerRank shards_;
  PerRank bytes_;          ///< that travel of each of them; else the pairs of each rank
  std::size_t first_ = 0;  ///< element of the own shard
  bool dense_ = false;     ///< pairs are added up by a dense all-reduce
  std::byte* sent_;
  std::byte* received_;
  std::byte* workspace_;
  int issued_ = 0;
};

}  // namespace aiacc
