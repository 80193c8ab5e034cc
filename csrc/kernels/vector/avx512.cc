// Compiled with -mavx512f, bw, dq and vl; called only where the processor has them.

#include <immintrin.h>

#include "csrc/kernels/vector/kernels.h"
#include "csrc/kernels/vector/level.h"
#include "csrc/kernels/vector/quantise.h"

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
                                  &decode_add_any_blocks};

}  // namespace aiacc
