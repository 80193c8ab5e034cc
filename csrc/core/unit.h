#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "csrc/core/tensor_table.h"
#include "csrc/engines/engine.h"
#include "csrc/planning/unit_planner.h"

namespace aiacc {

/// A planned unit with the operations that its slices belong to: `operations[i]` owns `slices[i]`.
struct Unit {
  PlannedUnit plan;
  std::vector<Operation*> operations;
};

/// Reusable, growing scratch memory of one lane, aligned for vector instructions.
class PackBuffer {
 public:
  std::byte* reserve(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t capacity_ = 0;
};

/// Multiplies a sum so that it becomes the average: 1/size, and for integers a hair more, so that
/// exact quotients survive the truncation of `scale`.
double average_factor(DataType dtype, int size);

/// Moves one unit: pack and prescale, engine operation, unpack. A single slice is worked on
/// in place, without the pack buffer. Blocks; throws what the engine throws. Buffers of the
/// operations are written only while this runs.
void execute_unit(
    const Unit& unit, Engine& engine, int lane, int rank, int size, PackBuffer& buffer);

}  // namespace aiacc
