#include "csrc/kernels/quantise.h"

#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

constexpr std::uint32_t kSmallestBlock = 128;
constexpr std::uint32_t kLargestBlock = 1024;

const VectorLevel& level() {
  static const VectorLevel& widest = *runnable_vector_levels().front();
  return widest;
}

}  // namespace

void check(const BlockCode& code) {
  if (code.format > BlockFormat::kFloat8E4M3) {
    throw Error(Code::kInvalidArgument,
                "[kernels] block format " + std::to_string(static_cast<int>(code.format)) +
                    " (expected 0 for int8, 1 for int4 or 2 for float8_e4m3); choose one of them");
  }
  const bool power_of_two = (code.block & (code.block - 1)) == 0;
  if (code.block < kSmallestBlock || code.block > kLargestBlock || !power_of_two) {
    throw Error(Code::kInvalidArgument,
                "[kernels] blocks of " + std::to_string(code.block) +
                    " elements (expected a power of two from " + std::to_string(kSmallestBlock) +
                    " to " + std::to_string(kLargestBlock) + "); 256 suits most tensors");
  }
}

std::size_t encoded_bytes(std::size_t count, const BlockCode& code) {
  check(code);
  const std::size_t blocks = count / code.block + (count % code.block != 0 ? 1 : 0);
  // All blocks but the last have an even number of elements.
  const std::size_t elements = code.format == BlockFormat::kInt4 ? count / 2 + count % 2 : count;
  return blocks * sizeof(float) + elements;
}

void encode_blocks(void* wire,
                   const void* in,
                   void* residual,
                   std::size_t count,
                   const BlockCode& code,
                   float factor,
                   const Rounding& rounding,
                   std::uint64_t first_index) {
  level().encode_blocks(wire, in, residual, count, code, factor, rounding, first_index);
}

void decode_blocks(
    void* out, const void* wire, std::size_t count, const BlockCode& code, float factor) {
  level().decode_blocks(out, wire, count, code, factor);
}

void decode_add_blocks(void* out, const void* wire, std::size_t count, const BlockCode& code) {
  level().decode_add_blocks(out, wire, count, code);
}

}  // namespace aiacc
