#include "csrc/kernels/gpu/block_code.h"

#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/block_code_body.h"

namespace aiacc {
namespace {

bool aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

void check_floats(const void* address, const char* what) {
  if (!aligned(address, sizeof(float))) {
    throw Error(Code::kInvalidArgument,
                "[kernels] the " + std::string(what) + " is at address " +
                    std::to_string(reinterpret_cast<std::uintptr_t>(address)) +
                    " (expected a multiple of 4); copy it into memory of its own");
  }
}

template <class Format>
void encode_all(const BlockEncoding& plan, std::uint32_t warps, bool backwards) {
  HostWarp<CodeThread> warp;
  warp.backwards = backwards;
  for (std::uint32_t number = 0; number < warps; ++number) {
    BlockEncodeBody<Format>::share(warp, plan, number, warps);
  }
}

template <class Format>
void decode_all(const BlockDecoding& plan, std::uint32_t warps, bool backwards) {
  HostWarp<CodeThread> warp;
  warp.backwards = backwards;
  for (std::uint32_t number = 0; number < warps; ++number) {
    BlockDecodeBody<Format>::share(warp, plan, number, warps);
  }
}

}  // namespace

BlockEncoding plan_encoding(void* wire,
                            const void* in,
                            void* residual,
                            std::size_t count,
                            const BlockCode& code,
                            float factor,
                            const Rounding& rounding,
                            std::uint64_t first_index) {
  check(code);
  check_floats(in, "tensor");
  check_floats(residual, "residual");
  const bool fast = aligned(in, 16) && aligned(residual, 16) && aligned(wire, 4);
  return {static_cast<const float*>(in),
          static_cast<float*>(residual),
          static_cast<unsigned char*>(wire),
          count,
          fast ? count / kBlockCodeTile : 0,
          rounding.seed,
          first_index,
          factor,
          code.block,
          rounding.stochastic ? 1U : 0U};
}

BlockDecoding plan_decoding(void* out,
                            const void* wire,
                            std::size_t count,
                            const BlockCode& code,
                            float factor,
                            bool adds) {
  check(code);
  check_floats(out, "tensor");
  const bool fast = aligned(out, 16) && aligned(wire, 4);
  return {static_cast<float*>(out),
          static_cast<const unsigned char*>(wire),
          count,
          fast ? count / kBlockCodeTile : 0,
          factor,
          code.block,
          adds ? 1U : 0U};
}

const std::vector<BlockCodeKernels>& block_code_kernels() {
#define AIACC_BLOCK_CODE_KERNELS(name, Format) \
  {"aiacc_encode_" #name, "aiacc_decode_" #name, &encode_all<Format>, &decode_all<Format>},
  static const std::vector<BlockCodeKernels> kernels = {
      AIACC_BLOCK_CODES(AIACC_BLOCK_CODE_KERNELS)};
#undef AIACC_BLOCK_CODE_KERNELS
  return kernels;
}

}  // namespace aiacc
