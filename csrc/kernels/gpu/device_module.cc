#include "csrc/kernels/gpu/device_module.h"

#include <algorithm>
#include <string>

namespace aiacc {
namespace {

CudaModule load(const CudaDriver& driver, const DeviceImage& image) {
  if (image.data == nullptr) {
    throw Error(
        Code::kUnsupported,
        "[cuda] this build has no CUDA kernels (expected nvcc at build time); rebuild aiacc "
        "where a CUDA toolkit is installed");
  }
  CudaModule module = nullptr;
  try {
    AIACC_CUDA_CHECK(driver, module_load, &module, image.data);
  } catch (const Error& error) {
    CudaDevice device = 0;
    int major = 0;
    int minor = 0;
    int version = 0;
    driver.context_device(&device);
    driver.device_attribute(&major, kCudaCapabilityMajor, device);
    driver.device_attribute(&minor, kCudaCapabilityMinor, device);
    driver.driver_version(&version);
    throw Error(error.code(),
                std::string(error.what()) + ": the kernels do not suit device " +
                    std::to_string(device) + " (compute capability " + std::to_string(major) + "." +
                    std::to_string(minor) + ", driver for CUDA " + std::to_string(version / 1000) +
                    "." + std::to_string(version % 1000 / 10) +
                    "); update the driver, or rebuild aiacc with AIACC_CUDA_ARCHITECTURES=" +
                    std::to_string(major * 10 + minor));
  }
  return module;
}

}  // namespace

DeviceModule::DeviceModule(const CudaDriver& driver, const DeviceImage& image)
    : driver_(driver), module_(load(driver, image)) {
  CudaDevice device = 0;
  AIACC_CUDA_CHECK(driver_, context_device, &device);
  AIACC_CUDA_CHECK(driver_, device_attribute, &multiprocessors_, kCudaMultiprocessors, device);
}

DeviceModule::~DeviceModule() { AIACC_CUDA_LOG(driver_, module_unload, module_); }

DeviceKernel DeviceModule::find(const char* name, unsigned threads) const {
  DeviceKernel kernel;
  int blocks = 0;
  AIACC_CUDA_CHECK(driver_, module_get_function, &kernel.function, module_, name);
  AIACC_CUDA_CHECK(
      driver_, blocks_per_multiprocessor, &blocks, kernel.function, static_cast<int>(threads), 0);
  kernel.resident = static_cast<unsigned>(std::max(1, blocks * multiprocessors_));
  return kernel;
}

void DeviceModule::launch_with(const DeviceKernel& kernel,
                               CudaStream stream,
                               unsigned blocks,
                               unsigned threads,
                               void** arguments) const {
  AIACC_CUDA_CHECK(
      driver_, launch, kernel.function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
}

}  // namespace aiacc
