#pragma once

#include <string>

#include "csrc/base/dtype.h"
#include "csrc/engines/device_engine.h"
#include "csrc/engines/nccl/nccl_api.h"

/// What NCCL is told, decided from facts. Pure, and equal on all ranks for equal arguments.
namespace aiacc {

/// NCCL's environment variable for the order of communicators that share a device.
inline constexpr const char* kLaunchOrderVariable = "NCCL_LAUNCH_ORDER_IMPLICIT";

/// Why several lanes would not be safe, as the rest of an error's text; "" if they are.
///
/// Operations of several communicators that are on a device at once may take its space from one
/// another, crosswise on two ranks: they wait for ever, unless NCCL keeps them in the order of
/// issue. `version` is the library's. `variable` is the value of kLaunchOrderVariable, "" if it is
/// not set. `used_before`: communicators may have been made in this process while it was not set:
/// before 2.31 NCCL reads it once.
std::string launch_order_problem(int version,
                                 int lanes,
                                 const std::string& variable,
                                 bool used_before);

/// Whether that variable has to be 1 before the first communicator, because none can be told
/// itself.
bool needs_launch_order_variable(int version, int lanes);

/// NCCL's environment variables for ranks that share a GPU, and for what counts as a host.
inline constexpr const char* kShareVariable = "NCCL_MULTI_RANK_GPU_ENABLE";
inline constexpr const char* kHostVariable = "NCCL_HOSTID";

/// Whether NCCL of this version takes several ranks on a GPU, for this value of kShareVariable.
bool shares_gpus(int version, const std::string& variable);

/// Settings of one of `lanes` communicators of a device with so many multiprocessors: the lanes
/// share a quarter of them, so that all are resident at once and the model has the others.
NcclConfig communicator_settings(int version, int lanes, int multiprocessors);

/// What stands for an element and an operation. Bool is uint8 with a maximum for "or".
NcclDataType nccl_type_of(DataType dtype, WireFormat wire = WireFormat::kTensor);
NcclRedOp nccl_op_of(DataType dtype, ReduceOp op);

/// The rest of an error's text if NCCL cannot reduce that on a GPU of this compute capability (the
/// number before the point), which `rank` has, unless that is -1; else "".
std::string nccl_refusal(const DeviceReduction& reduction, int capability, int rank = -1);

/// Why that version does not heed a wish for an algorithm, with the remedy; "" if it does.
std::string algorithm_problem(int version);

/// What a call is told to prefer. Only for an algorithm that is wished.
NcclCollConfig call_settings(Algorithm algorithm);

}  // namespace aiacc
