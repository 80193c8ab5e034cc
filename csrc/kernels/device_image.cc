#include "csrc/kernels/device_image.h"

// AIACC_DEVICE_IMAGE, from CMake: path of the file that nvcc made.
asm(".section .rodata.aiacc_device_image, \"a\"\n"
    ".balign 64\n"
    "aiacc_device_image_begin:\n"
    ".incbin \"" AIACC_DEVICE_IMAGE
    "\"\n"
    "aiacc_device_image_end:\n"
    ".byte 0\n"
    ".text\n");

extern "C" const unsigned char aiacc_device_image_begin[];
extern "C" const unsigned char aiacc_device_image_end[];

namespace aiacc {

DeviceImage device_image() {
  return {aiacc_device_image_begin,
          static_cast<std::size_t>(aiacc_device_image_end - aiacc_device_image_begin)};
}

}  // namespace aiacc
