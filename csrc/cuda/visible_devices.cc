#include "csrc/cuda/visible_devices.h"

#include <array>

namespace aiacc {

std::vector<std::string> visible_devices(const CudaDriver& driver) {
  int count = 0;
  AIACC_CUDA_CHECK(driver, init, 0);
  AIACC_CUDA_CHECK(driver, device_count, &count);
  std::vector<std::string> addresses;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CudaDevice device = 0;
    std::array<char, 32> address{};
    AIACC_CUDA_CHECK(driver, device_get, &device, ordinal);
    AIACC_CUDA_CHECK(
        driver, device_pci_address, address.data(), static_cast<int>(address.size()), device);
    addresses.emplace_back(address.data());
  }
  return addresses;
}

int lowest_capability(const CudaDriver& driver) {
  int count = 0;
  AIACC_CUDA_CHECK(driver, init, 0);
  AIACC_CUDA_CHECK(driver, device_count, &count);
  int lowest = 0;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CudaDevice device = 0;
    int major = 0;
    AIACC_CUDA_CHECK(driver, device_get, &device, ordinal);
    AIACC_CUDA_CHECK(driver, device_attribute, &major, kCudaCapabilityMajor, device);
    lowest = ordinal == 0 || major < lowest ? major : lowest;
  }
  return lowest;
}

}  // namespace aiacc
