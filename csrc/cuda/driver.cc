#include "csrc/cuda/driver.h"

#include <type_traits>

#include "csrc/base/dynamic_library.h"
#include "csrc/base/log.h"

namespace aiacc {
namespace {

template <class F>
void bind(const DynamicLibrary& library, const char* symbol, F*& function) {
  function = library.function<F>(symbol);
}

std::string describe(const CudaDriver& driver, CudaResult result, const char* call) {
  const char* name = nullptr;
  const char* text = nullptr;
  driver.error_name(result, &name);
  driver.error_string(result, &text);
  return std::string("[cuda] ") + call +
         " failed: " + (name != nullptr ? name : "error " + std::to_string(result)) +
         (text != nullptr ? std::string(" (") + text + ")" : "");
}

DynamicLibrary open(const std::string& path) {
  try {
    return DynamicLibrary(path);
  } catch (const Error& error) {
    throw Error(Code::kEngine,
                std::string(error.what()) +
                    "; CUDA tensors need the NVIDIA driver: install it, or in a container start it "
                    "with the GPUs");
  }
}

}  // namespace

CudaDriver load_cuda_driver(const std::string& path) {
  DynamicLibrary library = open(path);
  CudaDriver driver{};
  bind(library, "cuInit", driver.init);
  bind(library, "cuDriverGetVersion", driver.driver_version);
  bind(library, "cuGetErrorName", driver.error_name);
  bind(library, "cuGetErrorString", driver.error_string);
  bind(library, "cuDeviceGetCount", driver.device_count);
  bind(library, "cuDeviceGet", driver.device_get);
  bind(library, "cuDeviceGetPCIBusId", driver.device_pci_address);
  bind(library, "cuDeviceGetAttribute", driver.device_attribute);
  bind(library, "cuDevicePrimaryCtxRetain", driver.primary_context_retain);
  bind(library, "cuDevicePrimaryCtxRelease_v2", driver.primary_context_release);
  bind(library, "cuCtxPushCurrent_v2", driver.context_push);
  bind(library, "cuCtxPopCurrent_v2", driver.context_pop);
  bind(library, "cuCtxGetDevice", driver.context_device);
  bind(library, "cuCtxGetStreamPriorityRange", driver.stream_priority_range);
  bind(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
  bind(library, "cuStreamCreateWithPriority", driver.stream_create);
  bind(library, "cuStreamDestroy_v2", driver.stream_destroy);
  bind(library, "cuStreamWaitEvent", driver.stream_wait_event);
  bind(library, "cuStreamWaitValue32_v2", driver.stream_wait_value);
  bind(library, "cuStreamQuery", driver.stream_query);
  bind(library, "cuStreamIsCapturing", driver.stream_is_capturing);
  bind(library, "cuEventCreate", driver.event_create);
  bind(library, "cuEventRecord", driver.event_record);
  bind(library, "cuEventQuery", driver.event_query);
  bind(library, "cuEventDestroy_v2", driver.event_destroy);
  bind(library, "cuLaunchHostFunc", driver.launch_host_function);
  bind(library, "cuMemcpyAsync", driver.copy_async);
  bind(library, "cuMemsetD8Async", driver.fill_async);
  bind(library, "cuModuleGetFunction", driver.module_get_function);
  bind(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", driver.blocks_per_multiprocessor);
  bind(library, "cuLaunchKernel", driver.launch);
  bind(library, "cuLaunchCooperativeKernel", driver.launch_cooperative);
  bind(library, "cuMemAlloc_v2", driver.allocate);
  bind(library, "cuMemFree_v2", driver.release);
  bind(library, "cuMemHostAlloc", driver.host_allocate);
  bind(library, "cuMemFreeHost", driver.host_release);
  bind(library, "cuMemHostRegister_v2", driver.host_register);
  bind(library, "cuMemHostUnregister", driver.host_unregister);
  bind(library, "cuModuleLoadData", driver.module_load);
  bind(library, "cuModuleUnload", driver.module_unload);
  library.leak();
  return driver;
}

const CudaDriver& process_cuda_driver() {
  static const CudaDriver driver = load_cuda_driver();
  return driver;
}

void check_cuda(const CudaDriver& driver, CudaResult result, const char* call) {
  if (result != kCudaSuccess) {
    throw Error(Code::kEngine, describe(driver, result, call));
  }
}

void log_cuda(const CudaDriver& driver, CudaResult result, const char* call) noexcept {
  if (result != kCudaSuccess && result != kCudaDeinitialized) {
    try {
      AIACC_LOG(kWarning) << describe(driver, result, call);
    } catch (...) {
      // Out of memory: nothing can be told.
    }
  }
}

}  // namespace aiacc
