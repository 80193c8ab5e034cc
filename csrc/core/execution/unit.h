#pragma once

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
  const TensorSpec& spec() const { return operation->request.tensor(tensor); }
  TensorBuffers& buffers() const { return operation->tensor(tensor); }
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

  /// The members' GPUs. All tensors of a unit have the same; null in host memory.
  const SharedPlacement& devices() const { return pieces.front().operation->devices; }
};

/// Which unit it is, the same on all ranks; in the order of dispatch.
struct UnitId {
  std::uint64_t order = 0;
  std::uint32_t process_set = 0;
  std::uint64_t unit = 0;  ///< its number in the process set
};
UnitId id_of(const Unit& unit);
/// Whether tensors of a coded all-reduce have residuals.
bool feeds_back(const Unit& unit);
/// Its tensors in short: "'x' and 3 more".
std::string name_of(const Unit& unit);

}  // namespace aiacc
