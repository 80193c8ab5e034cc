#pragma once

#include <cstddef>
#include <cstdint>

namespace aiacc {

/// Element types. The numbers are part of the Python boundary (`aiacc._core`) and of the wire.
enum class DataType : std::uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kUInt16 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
  kBFloat16 = 10,
  kUInt32 = 11,
  kUInt64 = 12,
};
inline constexpr int kDataTypes = 13;

/// Reductions, numbered as in Horovod. Engines see only kSum, kMin, kMax and kProduct:
/// kAverage is kSum with a postscale of 1/size, applied by the core.
enum class ReduceOp : std::uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};

/// How floats travel: as they are in the tensor, or narrowed. The 8-bit ones exist only there. The
/// last ones are *coded*: what travels are not elements (engines/coding.h).
enum class WireFormat : std::uint8_t {
  kTensor = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat8E4M3 = 3,
  kFloat8E5M2 = 4,
  kInt8Blocks = 5,
  kInt4Blocks = 6,
  kFloat8Blocks = 7,
  kLargest = 8,
  kRandom = 9,
};
inline constexpr int kWireFormats = 10;

/// The arithmetic of one all-reduce: factor * (a op b op ...). What the factor does to integers and
/// 16-bit floats is said in kernels/scale.h.
struct Reduction {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
};

/// Bytes of one element.
std::size_t size_of(DataType dtype);

/// Whether elements have fractions; bool and integers have none.
bool is_floating(DataType dtype);

/// "float32", "bfloat16", ...: NumPy's and torch's spelling.
const char* name_of(DataType dtype);

/// "Average", "Sum", ...
const char* name_of(ReduceOp op);

/// "tensor", "float16", ..., "float8_e5m2"
const char* name_of(WireFormat wire);

/// Whether there is no DataType for what travels.
constexpr bool is_float8(WireFormat wire) {
  return wire == WireFormat::kFloat8E4M3 || wire == WireFormat::kFloat8E5M2;
}

constexpr bool is_coded(WireFormat wire) { return wire >= WireFormat::kInt8Blocks; }

/// The dtype of the elements that travel and are combined, unless they are 8-bit floats.
constexpr DataType dtype_on_wire(DataType dtype, WireFormat wire) {
  return wire == WireFormat::kFloat16    ? DataType::kFloat16
         : wire == WireFormat::kBFloat16 ? DataType::kBFloat16
                                         : dtype;
}

/// Bytes of one element of a tensor on the wire; 1 of those that are coded, whatever they are.
std::size_t size_on_wire(DataType dtype, WireFormat wire);

/// Throw Error(kInvalidArgument) on a number that names nothing.
DataType dtype_from(int value);
ReduceOp reduce_op_from(int value);

}  // namespace aiacc
