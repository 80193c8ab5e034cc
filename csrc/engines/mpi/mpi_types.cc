#include "csrc/engines/mpi/mpi_types.h"

#include <array>
#include <cstddef>

namespace aiacc {
namespace {

MpiReduceFunction reduce_function = nullptr;

/// What MPI has no type for is an opaque block of bytes that only our own operations touch.
struct Types {
  MPI_Datatype float16 = MPI_DATATYPE_NULL;
  MPI_Datatype bfloat16 = MPI_DATATYPE_NULL;
  MPI_Datatype boolean = MPI_DATATYPE_NULL;
  std::array<MPI_Op, 6> op{};  ///< by ReduceOp
};
Types types;

DataType type_of(MPI_Datatype native) {
  for (int number = 0; number < kDataTypes; ++number) {
    if (mpi_type(static_cast<DataType>(number)) == native) {
      return static_cast<DataType>(number);
    }
  }
  return DataType::kUInt8;
}

template <ReduceOp kOp>
void reduce_for_mpi(void* in, void* acc, int* count, MPI_Datatype* native) {
  reduce_function(acc,
                  in,
                  static_cast<std::size_t>(*count),
                  static_cast<int>(type_of(*native)),
                  static_cast<int>(kOp));
}

int make_opaque(int bytes, MPI_Datatype* type) {
  const int code = MPI_Type_contiguous(bytes, MPI_BYTE, type);
  return code != MPI_SUCCESS ? code : MPI_Type_commit(type);
}

int make_op(ReduceOp op, MPI_User_function* function) {
  return MPI_Op_create(function, 1, &types.op[static_cast<std::size_t>(op)]);
}

}  // namespace

void set_reduce_function(MpiReduceFunction reduce) { reduce_function = reduce; }

MPI_Datatype mpi_type(DataType dtype) {
  switch (dtype) {
    case DataType::kUInt8:
      return MPI_UINT8_T;
    case DataType::kInt8:
      return MPI_INT8_T;
    case DataType::kUInt16:
      return MPI_UINT16_T;
    case DataType::kInt16:
      return MPI_INT16_T;
    case DataType::kUInt32:
      return MPI_UINT32_T;
    case DataType::kUInt64:
      return MPI_UINT64_T;
    case DataType::kInt32:
      return MPI_INT32_T;
    case DataType::kInt64:
      return MPI_INT64_T;
    case DataType::kFloat16:
      return types.float16;
    case DataType::kFloat32:
      return MPI_FLOAT;
    case DataType::kFloat64:
      return MPI_DOUBLE;
    case DataType::kBool:
      return types.boolean;
    case DataType::kBFloat16:
      return types.bfloat16;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(DataType dtype, ReduceOp op) {
  const bool standard =
      dtype != DataType::kFloat16 && dtype != DataType::kBFloat16 && dtype != DataType::kBool;
  if (standard && op == ReduceOp::kSum) {
    return MPI_SUM;
  }
  if (standard && op == ReduceOp::kProduct) {
    return MPI_PROD;
  }
  return types.op[static_cast<std::size_t>(op)];
}

int create_mpi_types() {
  for (const int code : {make_opaque(2, &types.float16),
                         make_opaque(2, &types.bfloat16),
                         make_opaque(1, &types.boolean),
                         make_op(ReduceOp::kSum, reduce_for_mpi<ReduceOp::kSum>),
                         make_op(ReduceOp::kMin, reduce_for_mpi<ReduceOp::kMin>),
                         make_op(ReduceOp::kMax, reduce_for_mpi<ReduceOp::kMax>),
                         make_op(ReduceOp::kProduct, reduce_for_mpi<ReduceOp::kProduct>)}) {
    if (code != MPI_SUCCESS) {
      return code;
    }
  }
  return MPI_SUCCESS;
}

}  // namespace aiacc
