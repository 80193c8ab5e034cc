#include <string>

#include "csrc/base/env.h"
#include "csrc/base/error.h"
#include "csrc/cuda/visible_devices.h"
#include "csrc/engines/nccl/nccl_engine.h"
#include "csrc/engines/nccl/nccl_gpus.h"
#include "csrc/engines/nccl/nccl_settings.h"
#include "csrc/kernels/device_image.h"

namespace aiacc {
namespace {

/// Loaded once in a process, and never unloaded.
const NcclApi& nccl_of_process() {
  static const NcclApi api = load_nccl();
  return api;
}

}  // namespace

int nccl_version() { return nccl_of_process().version; }

Viability nccl_viability() {
  if (device_image(DeviceCode::kBatchCopy).data == nullptr) {
    return {
        false,
        "this build has no CUDA kernels: rebuild aiacc where nvcc is; CPU tensors work with the "
        "engines tcp and mpi"};
  }
  try {
    const CudaDriver& cuda = process_cuda_driver();
    int devices = 0;
    AIACC_CUDA_CHECK(cuda, init, 0);
    AIACC_CUDA_CHECK(cuda, device_count, &devices);
    if (devices == 0) {
      return {false, "no GPU is visible; check nvidia-smi and CUDA_VISIBLE_DEVICES"};
    }
    return {true,
            "NCCL " + nccl_version_text(nccl_of_process().version) + ", " +
                std::to_string(devices) + " GPUs"};
  } catch (const Error& error) {
    return {false, error.what()};
  }
}

std::string nccl_lanes_problem(int lanes, bool in_use) {
  return nccl_viability().viable
             ? launch_order_problem(
                   nccl_of_process().version, lanes, library_variable(kLaunchOrderVariable), in_use)
             : "";
}

NcclGpus nccl_gpus() {
  NcclGpus gpus;
  gpus.host = library_variable(kHostVariable);
  try {
    gpus.visible = visible_devices(process_cuda_driver());
    gpus.capability = lowest_capability(process_cuda_driver());
    const std::string share = library_variable(kShareVariable);
    gpus.may_share = !share.empty() && shares_gpus(nccl_of_process().version, share);
  } catch (const Error&) {
    // What is not known decides nothing.
  }
  return gpus;
}

std::unique_ptr<DeviceEngine> create_nccl_engine(const EngineContext& context) {
  return std::make_unique<NcclEngine>(process_cuda_driver(), nccl_of_process(), context);
}

}  // namespace aiacc
