#include "csrc/kernels/device_image.h"

// AIACC_..._IMAGE, from CMake: path of a file that nvcc made.
// NOLINTBEGIN(bugprone-macro-parentheses): names and literals
#define AIACC_EMBED(name, path)                                \
  asm(".section .rodata.aiacc_" #name                          \
      "_image, \"a\"\n"                                        \
      ".balign 64\n"                                           \
      "aiacc_" #name                                           \
      "_image_begin:\n"                                        \
      ".incbin \"" path                                        \
      "\"\n"                                                   \
      "aiacc_" #name                                           \
      "_image_end:\n"                                          \
      ".byte 0\n"                                              \
      ".text\n");                                              \
  extern "C" const unsigned char aiacc_##name##_image_begin[]; \
  extern "C" const unsigned char aiacc_##name##_image_end[];   \
  namespace aiacc {                                            \
  namespace {                                                  \
  DeviceImage name##_image() {                                 \
    const unsigned char* begin = aiacc_##name##_image_begin;   \
    const unsigned char* end = aiacc_##name##_image_end;       \
    return {begin, static_cast<std::size_t>(end - begin)};     \
  }                                                            \
  }                                                            \
  }
// NOLINTEND(bugprone-macro-parentheses)

AIACC_EMBED(add_pairs, AIACC_ADD_PAIRS_IMAGE)
AIACC_EMBED(batch_copy, AIACC_BATCH_COPY_IMAGE)
AIACC_EMBED(block_code, AIACC_BLOCK_CODE_IMAGE)
AIACC_EMBED(factor_packing, AIACC_FACTOR_PACKING_IMAGE)
AIACC_EMBED(lamb_update, AIACC_LAMB_UPDATE_IMAGE)
AIACC_EMBED(lars_update, AIACC_LARS_UPDATE_IMAGE)
AIACC_EMBED(selection, AIACC_SELECTION_IMAGE)

namespace aiacc {

DeviceImage device_image(DeviceCode code) {
  switch (code) {
    case DeviceCode::kAddPairs:
      return add_pairs_image();
    case DeviceCode::kBatchCopy:
      return batch_copy_image();
    case DeviceCode::kBlockCode:
      return block_code_image();
    case DeviceCode::kFactors:
      return factor_packing_image();
    case DeviceCode::kLamb:
      return lamb_update_image();
    case DeviceCode::kLars:
      return lars_update_image();
    case DeviceCode::kSelection:
      return selection_image();
  }
  return {};
}

}  // namespace aiacc
