// Compiled with -mavx2 -mf16c; called only where the processor has both.

#include <immintrin.h>

#include "csrc/kernels/vector/kernels.h"
#include "csrc/kernels/vector/level.h"
#include "csrc/kernels/vector/quantise.h"

namespace aiacc {
namespace {

struct F16cBlocks {
  static void widen(Float* out, const Bits16* in, std::size_t count) {
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(in + i));
      _mm256_storeu_ps(reinterpret_cast<float*>(out + i), _mm256_cvtph_ps(halves));
    }
    PlainHalfBlocks::widen(out + i, in + i, count - i);
  }
  static void narrow(Bits16* out, const Float* in, std::size_t count) {
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m256 wide = _mm256_loadu_ps(reinterpret_cast<const float*>(in + i));
      const __m128i halves = _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i_u*>(out + i), halves);
    }
    PlainHalfBlocks::narrow(out + i, in + i, count - i);
  }
};

using Avx2Kernels = Kernels<F16cBlocks>;

}  // namespace

const VectorLevel kAvx2Level = {"avx2",
                                &Avx2Kernels::reduce_into,
                                &Avx2Kernels::scale,
                                &Avx2Kernels::narrow,
                                &Avx2Kernels::widen,
                                &Avx2Kernels::largest_magnitude,
                                &encode_any_blocks,
                                &decode_any_blocks,
                                &decode_add_any_blocks};

}  // namespace aiacc
