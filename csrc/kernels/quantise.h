#pragma once

#include <cstddef>
#include <cstdint>

namespace aiacc {

/// How an element of a block is written: 8 or 4 bits in two's complement, without the lowest
/// number, or the 8-bit float of float8.h.
enum class BlockFormat : std::uint8_t { kInt8, kInt4, kFloat8E4M3 };

/// float32 in blocks of a few bits per element and one float32 scale, by which a decoder
/// multiplies. The scale is the largest magnitude of the block divided by the largest number of the
/// format (127, 7 or 448) and rounded up to 17 significant bits: the product of scale and element
/// is exact. It is 0 for a block of zeros, 2^-126 where it would be less than that, NaN where an
/// element is NaN or infinite.
struct BlockCode {
  BlockFormat format = BlockFormat::kInt8;
  std::uint32_t block = 256;  ///< elements: a power of two from 128 to 1024
};

/// Throws Error(kInvalidArgument) for a format or a block that is none.
void check(const BlockCode& code);

/// Bytes that `count` elements take: for each block, the last of which may be short, the scale and
/// the elements. So the encoded parts of a tensor that is cut between blocks, one after the other,
/// are the encoded tensor. Throws as `check` does.
std::size_t encoded_bytes(std::size_t count, const BlockCode& code);

/// To nearest even; or up or down by chance, so that the expected value is the number itself (to
/// 2^-17 of the distance). `seed` is to differ between steps, tensors and ranks.
struct Rounding {
  bool stochastic = false;
  std::uint64_t seed = 0;
};

/// Encodes t = factor * in[i] + residual[i], then residual[i] = t - decoded, all in float32;
/// without the second term where `residual` is null. Element i draws its chance from the seed and
/// first_index + i, so that parts of a tensor cut between blocks become the same bits.
///
/// A block where a t is NaN or infinite decodes to NaN, and its residual is left alone. Otherwise
/// decoded differs from t by at most half a step (stochastic: by less than one), save for the
/// roundings of t / scale in float32. A step is the scale, or the scale times the distance of the
/// 8-bit float's neighbours. decoded + residual is t: exactly for integers rounded to nearest, else
/// to one rounding of the residual. What has been decoded is encoded, to nearest, as the same bits
/// again, unless all of a block became zeros.
///
/// `wire` has encoded_bytes(count, code). No overlap, any alignment. `code` has passed `check`.
void encode_blocks(void* wire,
                   const void* in,
                   void* residual,
                   std::size_t count,
                   const BlockCode& code,
                   float factor,
                   const Rounding& rounding,
                   std::uint64_t first_index);

/// out[i] = factor * decoded, rounded once. No overlap, any alignment.
void decode_blocks(
    void* out, const void* wire, std::size_t count, const BlockCode& code, float factor);

/// out[i] += decoded, likewise.
void decode_add_blocks(void* out, const void* wire, std::size_t count, const BlockCode& code);

}  // namespace aiacc
