#include "csrc/engines/nccl/nccl_settings.h"

#include <algorithm>

#include "csrc/base/error.h"
#include "csrc/engines/coding.h"

namespace aiacc {
namespace {

/// Since then every communicator can be told.
constexpr int kOrderBySetting = nccl_version_code(2, 31, 0);

/// Since then every call can be told.
constexpr int kAlgorithmBySetting = nccl_version_code(2, 31, 0);

/// Since then several ranks may have one GPU.
constexpr int kSharedGpus = nccl_version_code(2, 30, 0);

/// NCCL adds 8-bit floats up on GPUs of this compute capability and newer.
constexpr int kFloat8Capability = 9;

/// One in so many multiprocessors is for communication.
constexpr int kShare = 4;

}  // namespace

std::string launch_order_problem(int version,
                                 int lanes,
                                 const std::string& variable,
                                 bool used_before) {
  if (lanes == 1) {
    return "";
  }
  const std::string with = std::to_string(lanes) + " lanes of NCCL " + nccl_version_text(version);
  if (!variable.empty() && variable != "1") {
    return with + " with " + kLaunchOrderVariable + "=" + variable +
           " in the environment may wait for each other for ever (expected 1, or not set); unset "
           "it, "
           "or set AIACC_GPU_LANES=1";
  }
  if (needs_launch_order_variable(version, lanes) && variable.empty() && used_before) {
    return with +
           " may wait for each other for ever, since NCCL was in use before aiacc and read " +
           kLaunchOrderVariable +
           " then; set it to 1 for the whole process, call hvd.init() before "
           "the first use of NCCL, update NCCL to 2.31, or set AIACC_GPU_LANES=1";
  }
  return "";
}

bool needs_launch_order_variable(int version, int lanes) {
  return version < kOrderBySetting && lanes > 1;
}

bool shares_gpus(int version, const std::string& variable) {
  return version >= kSharedGpus && !variable.empty() && variable != "0";
}

NcclConfig communicator_settings(int version, int lanes, int multiprocessors) {
  NcclConfig config;
  config.blocking = 0;
  config.split_share = 0;
  config.max_ctas = std::max(1, multiprocessors / kShare / lanes);
  if (version >= kOrderBySetting && lanes > 1) {
    config.launch_order_implicit = 1;
  }
  return config;
}

NcclDataType nccl_type_of(DataType dtype, WireFormat wire) {
  switch (wire) {
    case WireFormat::kFloat16:
      return kNcclFloat16;
    case WireFormat::kBFloat16:
      return kNcclBfloat16;
    case WireFormat::kFloat8E4M3:
      return kNcclFloat8e4m3;
    case WireFormat::kFloat8E5M2:
      return kNcclFloat8e5m2;
    case WireFormat::kTensor:
    case WireFormat::kInt8Blocks:  // the coded ones never come here
    case WireFormat::kInt4Blocks:
    case WireFormat::kFloat8Blocks:
    case WireFormat::kLargest:
    case WireFormat::kRandom:
      break;
  }
  switch (dtype) {
    case DataType::kInt8:
      return kNcclInt8;
    case DataType::kUInt8:
    case DataType::kBool:
      return kNcclUint8;
    case DataType::kUInt32:
      return kNcclUint32;
    case DataType::kInt32:
      return kNcclInt32;
    case DataType::kUInt64:
      return kNcclUint64;
    case DataType::kInt64:
      return kNcclInt64;
    case DataType::kFloat16:
      return kNcclFloat16;
    case DataType::kFloat32:
      return kNcclFloat32;
    case DataType::kFloat64:
      return kNcclFloat64;
    case DataType::kBFloat16:
      return kNcclBfloat16;
    case DataType::kUInt16:
    case DataType::kInt16:
      break;
  }
  throw Error(Code::kUnsupported, std::string("[nccl] dtype ") + name_of(dtype));
}

NcclRedOp nccl_op_of(DataType dtype, ReduceOp op) {
  const bool logical = dtype == DataType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return logical ? kNcclMax : kNcclSum;
    case ReduceOp::kMax:
      return kNcclMax;
    case ReduceOp::kProduct:
      return logical ? kNcclMin : kNcclProd;
    case ReduceOp::kMin:
      return kNcclMin;
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      break;
  }
  throw Error(Code::kUnsupported, std::string("[nccl] op=") + name_of(op));
}

std::string nccl_refusal(const DeviceReduction& reduction, int capability, int rank) {
  if (reduction.op == ReduceOp::kAdasum) {
    return "op=Adasum (expected one that NCCL has: Sum, Average, Min, Max, Product); move the "
           "tensor "
           "to the CPU for it";
  }
  if (reduction.dtype == DataType::kInt16 || reduction.dtype == DataType::kUInt16) {
    return std::string("reduction of dtype ") + name_of(reduction.dtype) +
           " (expected one that NCCL has: bool, 8-, 32- and 64-bit integers, floats); convert the "
           "tensor, or move it to the CPU";
  }
  if (reduction.wire == WireFormat::kRandom) {
    return std::string("wire format ") + name_of(reduction.wire) +
           " (expected blocks, the largest elements, or a format of 8 to 32 bits); use mstopk, or "
           "set AIACC_GPU_ENGINE=staged for it";
  }
  if (reduction.wire == WireFormat::kLargest && (reduction.wire_detail & Coding::kReference) != 0) {
    return std::string("wire format ") + name_of(reduction.wire) +
           " by mode=reference (expected tracked or exact); leave the mode out, or set "
           "AIACC_GPU_ENGINE=staged for it";
  }
  const bool narrow =
      reduction.wire == WireFormat::kFloat8E4M3 || reduction.wire == WireFormat::kFloat8E5M2;
  if (narrow && capability < kFloat8Capability) {
    return std::string("wire format ") + name_of(reduction.wire) + " on compute capability " +
           std::to_string(capability) + (rank < 0 ? "" : ", that of rank " + std::to_string(rank)) +
           " (expected " + std::to_string(kFloat8Capability) +
           " or newer, where NCCL adds 8-bit floats up); use bfloat16";
  }
  return "";
}

std::string algorithm_problem(int version) {
  return version >= kAlgorithmBySetting
             ? ""
             : "NCCL " + nccl_version_text(version) +
                   " chooses by itself (expected 2.31 or newer); update it, or use NCCL_ALGO";
}

NcclCollConfig call_settings(Algorithm algorithm) {
  NcclCollConfig config;
  config.algorithms = algorithm == Algorithm::kTree ? "tree" : "ring";
  config.force_algorithms = 0;
  return config;
}

}  // namespace aiacc
