#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "csrc/core/execution/finite_check.h"
#include "csrc/core/execution/unit.h"
#include "csrc/cuda/device_pool.h"
#include "csrc/engines/device_coded_all_reduce.h"
#include "csrc/engines/device_coding.h"
#include "csrc/engines/device_engine.h"
#include "csrc/kernels/batch_copier.h"

namespace aiacc {

/// What the units share that are queued on one GPU. The launching thread's.
struct DeviceResources {
  /// Loads kernels. `checks`: they shall look at inputs. Needs a Device::Scope, here and in the
  /// destructor.
  DeviceResources(std::shared_ptr<Device> opened, std::shared_ptr<DevicePool> shared, bool checks)
      : device(std::move(opened)),
        pool(std::move(shared)),
        copier(device->driver()),
        reports(checks ? std::make_unique<ReportPool>(device->driver()) : nullptr) {}

  /// Made when a unit first travels coded: loads kernels, and may wait for the GPU.
  DeviceCoding& coding() {
    if (coding_ == nullptr) {
      coding_ = std::make_unique<DeviceCoding>(device->driver(), pool);
    }
    return *coding_;
  }

  std::shared_ptr<Device> device;
  std::shared_ptr<DevicePool> pool;
  BatchCopier copier;
  std::unique_ptr<ReportPool> reports;  ///< null unless they look at inputs
  /// By the address of a buffer of the engine: the mark after the last unit that used it.
  std::unordered_map<const void*, Mark> buffer_users;

 private:
  std::unique_ptr<DeviceCoding> coding_;
};

/// One unit of tensors on a GPU, as it is queued on its lane's stream in three steps: pack with the
/// prescale, operation, unpack with what is to be done to the sum; one kernel each. It is
/// packed while the lane's unit before it is on its way. A single tensor is worked on in place
/// where the engine can. A piece without memory stands for zeros, and its result is dropped. With
/// `unit.finite` the first kernel looks at the inputs, and copies where it would not be needed. One
/// that travels coded is encoded as it is packed, with residuals, and may take several operations.
///
/// The steps are called in their order, by the launching thread, in a Device::Scope, and throw what
/// engine and CUDA throw: `prepare`; `issue` and `go_on` until no unit has another operation;
/// `complete`. Of a launch group, all take one step before any takes the next; then no two of them
/// may be on one lane. The arguments of the constructor outlive it.
class DeviceUnit {
 public:
  DeviceUnit(Unit& unit, int lane, DeviceEngine& engine, DeviceResources& resources);

  /// Kernels and copies before the operation.
  void prepare();
  /// The next operation, or nothing: calls of the engine, and nothing else.
  void issue();
  /// Kernels after it that prepare another one. Whether there is one.
  bool go_on() { return coded_ && coded_->go_on(); }
  /// Kernels after the last one. Returns the mark of its end.
  Mark complete();
  /// What is found in the inputs lies there when the GPU has done the unit; null: nobody looks.
  ReportPool::Taken take_checked() { return std::move(checked_); }

 private:
  void prepare_coded();
  void prepare_in_place();
  void prepare_gathering();
  void prepare_reduce_scatter();

  std::byte* start_packing(std::size_t bytes);
  void end_packing();
  void pack(std::byte* packed, bool residuals = false);
  void unpack(const std::byte* packed, bool residuals = false);
  void scale(void* out, const void* in, std::size_t count, double factor, CopyReport* reports);
  void run(CopyDirection direction,
           double factor,
           const std::vector<CopySegment>& segments,
           CopyReport* reports);
  /// Whether the input has to pass through a kernel.
  bool converts() const { return before_ != 1.0 || checked_ != nullptr; }
  CopyReport* reports() const { return checked_ == nullptr ? nullptr : checked_->reports; }
  std::size_t on_wire(std::size_t bytes) const {
    return bytes / size_of(reduction_.dtype) * size_on_wire(reduction_.dtype, packed_as_);
  }

  const Unit& unit_;
  const Request& request_;
  const std::vector<SliceMemory>& slices_;  ///< `unit.memory`
  const int lane_;
  DeviceEngine& engine_;
  DeviceResources& resources_;
  Device& device_;
  const Reduction reduction_;
  const WireFormat packed_as_;  ///< coded elements are packed as they are
  double before_ = 1.0;         ///< what inputs and
  double after_ = 1.0;          ///< results are multiplied by
  const CudaStream stream_;     ///< the lane's
  CudaStream current_;          ///< that of kernels: the lane's, or the one where it packs
  const void* send_ = nullptr;  ///< of the operation
  void* recv_ = nullptr;
  std::size_t results_ = 0;             ///< elements at `recv_`, if nothing is unpacked
  PerRank sent_;                        ///< bytes of an all-to-all
  PerRank received_;                    ///< bytes, or elements of a reduce-scatter
  std::byte* buffer_ = nullptr;         ///< the lane's, if it is used
  std::byte* packed_ = nullptr;         ///< the tensors in it; null: they are worked on in place
  std::byte* residuals_ = nullptr;      ///< packed ones, or null
  std::shared_ptr<DeviceBlock> zeros_;  ///< instead of a tensor
  bool issued_ = false;                 ///< the one operation of what is not coded
  std::optional<DeviceCodedAllReduce> coded_;
  ReportPool::Taken checked_;  ///< null: nobody looks at the inputs
};

}  // namespace aiacc
