// Compiled with -mavx512f, bw, dq and vl; called only where the processor has them.

#include <immintrin.h>

#include "csrc/kernels/vector/kernels.h"
#include "csrc/kernels/vector/level.h"
#include "csrc/kernels/vector/quantise.h"
#include "csrc/kernels/vector/select_kernels.h"
#include "csrc/kernels/vector/update.h"

namespace aiacc {
namespace {

struct Avx512HalfBlocks {
  static void widen(Float* out, const Bits16* in, std::size_t count) {
    std::size_t i = 0;
    for (; i + 16 <= count; i += 16) {
      const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(in + i));
      _mm512_storeu_ps(out + i, _mm512_cvtph_ps(halves));
    }
    PlainHalfBlocks::widen(out + i, in + i, count - i);
  }
  static void narrow(Bits16* out, const Float* in, std::size_t count) {
    std::size_t i = 0;
    for (; i + 16 <= count; i += 16) {
      const __m256i halves = _mm512_cvtps_ph(_mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
      _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out + i), halves);
    }
    PlainHalfBlocks::narrow(out + i, in + i, count - i);
  }
};

struct Avx512Collect {
  /// Packs in a register and stores all of it: to pack into memory is slow on AMD's processors.
  static std::size_t collect(float* values,
                             std::uint32_t* indices,
                             const float* in,
                             std::size_t count,
                             std::uint32_t low,
                             std::uint32_t first) {
    const auto* x = static_cast<const Float*>(in);
    const auto least = static_cast<std::int32_t>(low);
    const __m512i lowest = _mm512_set1_epi32(least);
    const __m512i without_sign = _mm512_set1_epi32(INT32_MAX);
    const __m512i step = _mm512_set1_epi32(16);
    __m512i at =
        _mm512_add_epi32(_mm512_set1_epi32(static_cast<std::int32_t>(first)),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    std::size_t found = 0;
    std::size_t i = 0;
    for (; i + 16 <= count; i += 16) {
      const __m512i bits = _mm512_loadu_si512(x + i);
      const __mmask16 reach = _mm512_cmpge_epi32_mask(_mm512_and_si512(bits, without_sign), lowest);
      _mm512_storeu_si512(values + found, _mm512_maskz_compress_epi32(reach, bits));
      _mm512_storeu_si512(indices + found, _mm512_maskz_compress_epi32(reach, at));
      // Converted by name: GCC 12 may read a mask that it spilled, two bytes, as four.
      found += static_cast<std::size_t>(__builtin_popcount(_cvtmask16_u32(reach)));
      at = _mm512_add_epi32(at, step);
    }
    return PlainCollect::append(values, indices, found, x, i, count, least, first);
  }
};

using Avx512Kernels = Kernels<Avx512HalfBlocks>;

}  // namespace

const VectorLevel kAvx512Level = {"avx512",
                                  &Avx512Kernels::reduce_into,
                                  &Avx512Kernels::scale,
                                  &Avx512Kernels::narrow,
                                  &Avx512Kernels::widen,
                                  &Avx512Kernels::largest_magnitude,
                                  &encode_any_blocks,
                                  &decode_any_blocks,
                                  &decode_add_any_blocks,
                                  &SelectKernels::accumulate,
                                  &Avx512Collect::collect,
                                  &SelectKernels::count_reaching,
                                  &SelectKernels::add_magnitudes,
                                  &UpdateKernels::add_squares,
                                  &UpdateKernels::momentum_update};

}  // namespace aiacc
