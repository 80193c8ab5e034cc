#pragma once

// Block codes by whoever has the kernels (their bodies on the host, a GPU) against the CPU's.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/kernels/gpu/block_coder.h"
#include "csrc/kernels/vector/level.h"
#include "tests/cpp/kernels/blocks.h"
#include "tests/gpu/mirrored.h"

namespace aiacc {

struct BlockCodeCase {
  BlockCode code;
  std::size_t count;
  bool is_strange = false;  ///< NaN, infinities and the ends of the range are among the numbers
  Rounding rounding = {true, 11};
  std::uint64_t first_index = 5120;
  std::size_t shift = 0;       ///< of floats, from an aligned address
  std::size_t wire_shift = 0;  ///< of bytes
};

/// Every format, block and rounding, with counts around a tile; every address; and draws past the
/// first 32 bits of an index.
inline std::vector<BlockCodeCase> block_code_cases(const std::vector<std::size_t>& counts) {
  std::vector<BlockCodeCase> cases;
  for (const BlockFormat format : block_formats()) {
    for (const std::uint32_t block : {128, 256, 512, 1024}) {
      for (const std::size_t count : counts) {
        for (const bool stochastic : {false, true}) {
          cases.push_back({{format, block}, count, false, {stochastic, 11}});
          cases.push_back({{format, block}, count, true, {stochastic, 12}, 5120, 0, 4});
        }
      }
    }
    for (const std::size_t shift : {0, 1, 2, 3}) {
      for (const std::size_t wire_shift : {0, 1, 2, 3}) {
        cases.push_back({{format, 256}, 2300, false, {true, 13}, 5120, shift, wire_shift});
      }
    }
    for (const std::uint32_t block : {128, 512, 1024}) {
      for (const std::uint64_t before : {1024U, 1536U, 2100U}) {
        const std::uint64_t first_index = (std::uint64_t{3} << 32) - before;
        cases.push_back({{format, block}, 5000, false, {true, 14}, first_index});
      }
    }
  }
  return cases;
}

/// The bodies on the host in the place of a BlockCoder: so many warps, the threads of each in
/// either order.
struct BlockCodeTwin {
  BlockFormat format;
  std::uint32_t warps;
  bool backwards;

  template <class... Told>
  void encode(CudaStream, Told... told) const {
    kernels().encode(plan_encoding(told...), warps, backwards);
  }
  template <class... Told>
  void decode(CudaStream, Told... told) const {
    kernels().decode(plan_decoding(told..., false), warps, backwards);
  }
  template <class... Told>
  void decode_add(CudaStream, Told... told) const {
    kernels().decode(plan_decoding(told..., 1, true), warps, backwards);
  }

 private:
  const BlockCodeKernels& kernels() const {
    return block_code_kernels()[static_cast<std::size_t>(format)];
  }
};

/// Encodes with feedback and without, and decodes in both ways. What differs from the CPU's
/// kernels, or "".
template <class Coder>
std::string check_block_code(GpuRig& rig, const Coder& coder, const BlockCodeCase& job) {
  const BlockCode code = job.code;
  const std::size_t count = job.count;
  const auto text = [&](const std::string& what) {
    return what + " differs: " + name_of(code.format) + ", blocks of " +
           std::to_string(code.block) + ", " + std::to_string(count) + " elements " +
           std::to_string(job.shift) + " and " + std::to_string(job.wire_shift) + " on, " +
           (job.rounding.stochastic ? "stochastic" : "nearest");
  };
  for (const bool keeps : {false, true}) {
    const std::vector<float> numbers =
        job.is_strange ? any_elements<float>(count, code.block) : random_floats(count, 1);
    Mirrored<float> in(rig, numbers, job.shift);
    Mirrored<float> residual(rig, random_floats(count, 2), job.shift);
    Mirrored<float> out(rig, random_floats(count, 3), job.shift);
    Mirrored<unsigned char> wire(rig, Bytes(encoded_bytes(count, code)), job.wire_shift);
    const auto encode = [&](auto by, unsigned char* to, float* from, float* rest) {
      by(to, from, keeps ? rest : nullptr, count, code, 0.7F, job.rounding, job.first_index);
    };
    const auto coded = [&](auto... told) { coder.encode(rig.stream(), told...); };
    encode(coded, wire.device(), in.device(), residual.device());
    encode(kBaselineLevel.encode_blocks, wire.host(), in.host(), residual.host());
    if (!wire.equal()) {
      return text("what is sent");
    }
    if (!residual.equal() || !in.equal()) {
      return text("what is kept");
    }
    coder.decode_add(rig.stream(), out.device(), wire.device(), count, code);
    kBaselineLevel.decode_add_blocks(out.host(), wire.host(), count, code);
    if (!out.equal()) {
      return text("what is added");
    }
    coder.decode(rig.stream(), out.device(), wire.device(), count, code, 1.0F / 3);
    kBaselineLevel.decode_blocks(out.host(), wire.host(), count, code, 1.0F / 3);
    if (!out.equal()) {
      return text("what is decoded");
    }
  }
  return "";
}

}  // namespace aiacc
