#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/kernels/host_device.h"
#include "csrc/kernels/quantise.h"

namespace aiacc {

inline constexpr std::uint32_t kWarpThreads = 32;

/// Threads of a block of these kernels, in warps that have no more to do with one another.
inline constexpr std::uint32_t kBlockCodeThreads = 256;

/// Elements that a warp encodes or decodes at a time: whole blocks of any size.
inline constexpr std::uint32_t kBlockCodeTile = 1024;

/// The only argument of a kernel that encodes. The first `tiles` tiles go the fast way, by
/// accesses of 16 bytes; what follows them goes block by block.
struct BlockEncoding {
  const float* in;
  float* residual;  ///< or null
  unsigned char* wire;
  std::uint64_t count;
  std::uint64_t tiles;
  std::uint64_t seed;
  std::uint64_t first_index;
  float factor;
  std::uint32_t block;
  std::uint32_t stochastic;
};

/// The same of one that decodes.
struct BlockDecoding {
  float* out;
  const unsigned char* wire;
  std::uint64_t count;
  std::uint64_t tiles;
  float factor;
  std::uint32_t block;
  std::uint32_t adds;  ///< to what is there, without the factor
};

/// The argument of a launch, for what encode_blocks and decode_blocks (quantise.h) are told. Pure.
/// Throws Error(kInvalidArgument) as check(code) does, and if an address of floats is no multiple
/// of 4.
BlockEncoding plan_encoding(void* wire,
                            const void* in,
                            void* residual,
                            std::size_t count,
                            const BlockCode& code,
                            float factor,
                            const Rounding& rounding,
                            std::uint64_t first_index);
BlockDecoding plan_decoding(
    void* out, const void* wire, std::size_t count, const BlockCode& code, float factor, bool adds);

/// Tiles and blocks, each of which a warp does by itself.
template <class Plan>
AIACC_HOST_DEVICE std::uint64_t work_items(const Plan& plan) {
  const std::uint64_t rest = plan.count - plan.tiles * kBlockCodeTile;
  return plan.tiles + (rest + plan.block - 1) / plan.block;
}

/// The kernels of a format, and their twins on the host: what `warps` warps do, one after another,
/// the threads of each in either order.
struct BlockCodeKernels {
  const char* encode_name;  ///< in the device image
  const char* decode_name;
  void (*encode)(const BlockEncoding& plan, std::uint32_t warps, bool backwards);
  void (*decode)(const BlockDecoding& plan, std::uint32_t warps, bool backwards);
};

/// By the numbers of BlockFormat.
const std::vector<BlockCodeKernels>& block_code_kernels();

}  // namespace aiacc
