#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/core/execution/gpu/device_resources.h"
#include "csrc/core/execution/gpu/wait_for_inputs.h"
#include "csrc/core/execution/unit.h"
#include "csrc/engines/device_coded_all_reduce.h"
#include "csrc/engines/device_engine.h"

namespace aiacc {

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
  DeviceUnit(const Unit& unit, int lane, DeviceEngine& engine, DeviceResources& resources);

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
  void prepare_all_reduce();
  void prepare_coded();
  void prepare_broadcast();
  void prepare_gathering();
  void prepare_reduce_scatter();
  void complete_all_reduce();
  void complete_coded();

  /// Whether the operation can work on the memory of the one tensor of the unit.
  bool in_place() const { return unit_.pieces.size() == 1 && packed_as_ == WireFormat::kTensor; }
  std::size_t on_wire(std::size_t bytes) const {
    return bytes / size_of(dtype_) * size_on_wire(dtype_, packed_as_);
  }
  bool is_root() const {
    return index_in(unit_.communicator->ranks, request_.root) == unit_.communicator->rank;
  }
  std::size_t elements() const { return unit_.plan.bytes / size_of(dtype_); }
  void scale(
      void* out, const void* in, std::size_t count, double factor, CopyReport* reports = nullptr) {
    run(CopyDirection::kPack, factor, {{in, out, count}}, reports);
  }
  void run(CopyDirection direction,
           double factor,
           const std::vector<CopySegment>& segments,
           CopyReport* reports = nullptr);
  /// Whether the input has to pass through a kernel.
  bool converts() const { return request_.prescale != 1.0 || checked_ != nullptr; }
  CopyReport* reports() const { return checked_ == nullptr ? nullptr : checked_->reports; }
  /// For a unit that is worked on where its tensors are.
  void start_in_place() { wait_for_inputs(unit_, stream_, *resources_.device); }
  std::byte* start_packing(std::size_t bytes);
  void end_packing();
  bool keeps(const Piece& piece) const;
  void pack(std::byte* packed, double factor);
  void unpack(const std::byte* packed, double factor);
  void pack_residuals(std::byte* packed);
  void unpack_residuals(const std::byte* packed);
  double factor_after() const;
  ReduceOp op() const;
  std::vector<std::size_t> bytes_of(const std::vector<std::int64_t>& rows) const;

  const Unit& unit_;
  const int lane_;
  DeviceEngine& engine_;
  DeviceResources& resources_;
  const CudaDriver& driver_;
  const CudaStream stream_;      ///< the lane's
  CudaStream current_;           ///< that of kernels: the lane's, or the one where it packs
  std::byte* packed_ = nullptr;  ///< a buffer of the lane's, or null
  const void* send_ = nullptr;   ///< of the operation
  void* recv_ = nullptr;
  std::vector<std::size_t> sent_;                 ///< by member: bytes of an all-to-all
  std::vector<std::size_t> received_;             ///< bytes, or elements of a reduce-scatter
  std::shared_ptr<DeviceBlock> zeros_ = nullptr;  ///< instead of a tensor
  const Piece& piece_;                            ///< the first one: the others are alike
  const Request& request_;
  const DataType dtype_;
  const WireFormat packed_as_;  ///< coded elements are packed as they are
  bool issued_ = false;         ///< the one operation of what is not coded
  std::optional<DeviceCodedAllReduce> coded_;
  std::byte* values_ = nullptr;     ///< of a coded all-reduce
  std::byte* residuals_ = nullptr;  ///< packed ones, or null
  ReportPool::Taken checked_;       ///< null: nobody looks at the inputs
};

}  // namespace aiacc
