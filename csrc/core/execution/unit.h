#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/core/execution/communicator.h"
#include "csrc/core/submission/tensor_table.h"
#include "csrc/planning/unit_planner.h"

namespace aiacc {

class FiniteCheck;

/// One tensor of an operation.
struct Piece {
  Operation* operation = nullptr;
  std::uint32_t tensor = 0;

  const Request& request() const { return operation->request; }
  const TensorSpec& spec() const { return operation->request.tensors[tensor]; }
  TensorBuffers& buffers() const { return operation->buffers[tensor]; }
};

/// Where the bytes of one slice are in memory, and among those of its unit.
struct SliceMemory {
  const std::byte* input = nullptr;  ///< null: zeros of a rank that has joined, for GPUs
  std::byte* output = nullptr;       ///< null: the result is dropped; of a reduce-scatter the part
  std::byte* residual = nullptr;     ///< null: there is none, or it is not used
  std::size_t offset = 0;            ///< where it begins when the unit is packed
  std::size_t bytes = 0;
};

/// A planned unit with the tensors that its slices belong to: `pieces[i]` owns `plan.slices[i]`.
struct Unit {
  PlannedUnit plan;
  std::uint64_t order = 0;  ///< of the plan that made it: all ranks count plans alike
  std::vector<Piece> pieces;
  std::shared_ptr<const Communicator> communicator;
  Algorithm algorithm = Algorithm::kAny;
  FiniteCheck* finite = nullptr;     ///< null: inputs are not looked at
  std::uint64_t seed = 0;            ///< of a coded all-reduce, see seed_of_unit
  bool joined = false;               ///< the launching thread issues the next one together with it
  std::vector<Operation*> finished;  ///< scratch of whoever has run it
  std::vector<SliceMemory> memory;   ///< scratch of whoever runs it

  const Request& request() const { return pieces.front().request(); }
  /// The dtype of its elements.
  DataType dtype() const { return pieces.front().spec().dtype; }
  std::size_t elements() const { return plan.bytes / size_of(dtype()); }
  /// The members' GPUs. All tensors of a unit have the same; null in host memory.
  const SharedPlacement& devices() const { return pieces.front().operation->devices; }
  bool is_root() const {
    return communicator->ranks[static_cast<std::size_t>(communicator->rank)] == request().root;
  }
};

/// Fills in `memory` with the slices of an operation on elements: all but all-gather and
/// all-to-all.
void find_memory(const Unit& unit, std::vector<SliceMemory>& memory);
/// Whether slices of a coded all-reduce have residuals.
bool feeds_back(const std::vector<SliceMemory>& memory);

/// Multiplies a sum so that it becomes the average times `postscale`. A factor of 1.0 / n makes
/// `scale` divide, which is exact; for integers other factors are rounded up slightly, so that
/// whole results survive truncation.
double average_factor(DataType dtype, int size, double postscale);
/// What shall be done to the elements of an all-reduce or reduce-scatter.
Reduction reduction_of(const Unit& unit);
/// Elements that a reduce-scatter leaves to every member.
PerRank scattered_elements(const Unit& unit);
/// Bytes of the rows that an all-gather or all-to-all brings from every member.
PerRank received_bytes(const Unit& unit);
/// Bytes of the rows that an all-to-all sends to every member.
PerRank sent_bytes(const Unit& unit);

/// Makes a stream of the device wait for who wrote the tensors. Needs a Device::Scope.
void wait_for_inputs(const Unit& unit, CudaStream stream, const Device& device);

/// Which unit it is, the same on all ranks; in the order of dispatch.
struct UnitId {
  std::uint64_t order = 0;
  std::uint32_t process_set = 0;
  std::uint64_t unit = 0;  ///< its number in the process set
};
UnitId id_of(const Unit& unit);
/// Its tensors in short: "'x' and 3 more".
std::string name_of(const Unit& unit);

}  // namespace aiacc
