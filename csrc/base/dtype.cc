#include "csrc/base/dtype.h"

#include <string>

#include "csrc/base/error.h"

namespace aiacc {

std::size_t size_of(DataType dtype) {
  switch (dtype) {
    case DataType::kUInt8:
    case DataType::kInt8:
    case DataType::kBool:
      return 1;
    case DataType::kUInt16:
    case DataType::kInt16:
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return 2;
    case DataType::kUInt32:
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kUInt64:
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
  }
  throw Error(Code::kInternal, "[core] unknown data type");
}

bool is_floating(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
      return true;
    case DataType::kUInt8:
    case DataType::kInt8:
    case DataType::kUInt16:
    case DataType::kInt16:
    case DataType::kUInt32:
    case DataType::kInt32:
    case DataType::kUInt64:
    case DataType::kInt64:
    case DataType::kBool:
      return false;
  }
  return false;
}

const char* name_of(DataType dtype) {
  switch (dtype) {
    case DataType::kUInt8:
      return "uint8";
    case DataType::kInt8:
      return "int8";
    case DataType::kUInt16:
      return "uint16";
    case DataType::kInt16:
      return "int16";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kFloat16:
      return "float16";
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kBool:
      return "bool";
    case DataType::kBFloat16:
      return "bfloat16";
    case DataType::kUInt32:
      return "uint32";
    case DataType::kUInt64:
      return "uint64";
  }
  return "unknown";
}

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kAverage:
      return "Average";
    case ReduceOp::kSum:
      return "Sum";
    case ReduceOp::kAdasum:
      return "Adasum";
    case ReduceOp::kMin:
      return "Min";
    case ReduceOp::kMax:
      return "Max";
    case ReduceOp::kProduct:
      return "Product";
  }
  return "unknown";
}

const char* name_of(WireFormat wire) {
  switch (wire) {
    case WireFormat::kTensor:
      return "tensor";
    case WireFormat::kFloat16:
      return "float16";
    case WireFormat::kBFloat16:
      return "bfloat16";
    case WireFormat::kFloat8E4M3:
      return "float8_e4m3";
    case WireFormat::kFloat8E5M2:
      return "float8_e5m2";
    case WireFormat::kInt8Blocks:
      return "int8_blocks";
    case WireFormat::kInt4Blocks:
      return "int4_blocks";
    case WireFormat::kFloat8Blocks:
      return "float8_blocks";
    case WireFormat::kLargest:
      return "largest";
    case WireFormat::kRandom:
      return "random";
  }
  return "unknown";
}

std::size_t size_on_wire(DataType dtype, WireFormat wire) {
  return is_float8(wire) || is_coded(wire) ? 1 : size_of(dtype_on_wire(dtype, wire));
}

DataType dtype_from(int value) {
  if (value < 0 || value >= kDataTypes) {
    throw Error(Code::kInvalidArgument,
                "[core] data type code " + std::to_string(value) + " (expected 0.." +
                    std::to_string(kDataTypes - 1) + ")");
  }
  return static_cast<DataType>(value);
}

ReduceOp reduce_op_from(int value) {
  if (value < 0 || value > 5) {
    throw Error(Code::kInvalidArgument,
                "[core] reduce op " + std::to_string(value) +
                    " (expected 0..5: Average, Sum, Adasum, Min, Max, Product)");
  }
  return static_cast<ReduceOp>(value);
}

}  // namespace aiacc
