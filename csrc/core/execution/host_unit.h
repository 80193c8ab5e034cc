#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "csrc/core/execution/unit.h"
#include "csrc/engines/coded_all_reduce.h"

namespace aiacc {

/// Reusable, growing scratch memory of one lane, aligned for vector instructions.
class PackBuffer {
 public:
  std::byte* reserve(std::size_t bytes);
  /// For coded all-reduces.
  CodedMemory& coded() { return coded_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t capacity_ = 0;
  CodedMemory coded_;
};

/// Moves one unit with the engine of its communicator: pack and prescale, engine operation, unpack.
/// A single slice that travels as it is is worked on in place, without the pack buffer. Blocks;
/// throws what the engine throws. Buffers of the operations are written only while this runs.
void execute_unit(Unit& unit, int lane, PackBuffer& buffer);

/// The same for an operation on elements whose slices are at other places than the tensors', or
/// are fewer: they are used as one where they lie one after another.
void execute_slices(const Unit& unit,
                    const std::vector<SliceMemory>& slices,
                    int lane,
                    PackBuffer& buffer);

}  // namespace aiacc
