#pragma once

#include <cstddef>
#include <memory>

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

/// Multiplies a sum so that it becomes the average times `postscale`. A factor of 1.0 / n makes
/// `scale` divide, which is exact; for integers other factors are rounded up slightly, so that
/// whole results survive truncation.
double average_factor(DataType dtype, int size, double postscale);

/// What shall be done to the elements of an all-reduce or reduce-scatter, other than Adasum.
Reduction reduction_of(const Unit& unit);

/// Moves one unit with the engine of its communicator: pack and prescale, engine operation, unpack.
/// A single slice that travels as it is is worked on in place, without the pack buffer. Blocks;
/// throws what the engine throws. Buffers of the operations are written only while this runs.
void execute_unit(const Unit& unit, int lane, PackBuffer& buffer);

}  // namespace aiacc
