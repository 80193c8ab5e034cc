// Compiled with -mavx2 -mf16c; called only where the processor has both.

#include <immintrin.h>

#include "csrc/kernels/vector/kernels.h"
#include "csrc/kernels/vector/level.h"
#include "csrc/kernels/vector/quantise.h"
#include "csrc/kernels/vector/select_kernels.h"
#include "csrc/kernels/vector/update.h"

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

struct Avx2Collect {
  static std::size_t collect(float* values,
                             std::uint32_t* indices,
                             const float* in,
                             std::size_t count,
                             std::uint32_t low,
                             std::uint32_t first) {
    const auto* x = static_cast<const Float*>(in);
    const auto least = static_cast<std::int32_t>(low);
    const __m256i below = _mm256_set1_epi32(least - 1);
    const __m256i without_sign = _mm256_set1_epi32(INT32_MAX);
    std::size_t found = 0;
    std::size_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(x + i));
      const __m256i reach = _mm256_cmpgt_epi32(_mm256_and_si256(bits, without_sign), below);
      auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(reach)));
      for (; mask != 0; mask &= mask - 1) {
        const std::size_t at = i + static_cast<std::size_t>(__builtin_ctz(mask));
        values[found] = x[at];
        indices[found++] = first + static_cast<std::uint32_t>(at);
      }
    }
    return PlainCollect::append(values, indices, found, x, i, count, least, first);
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
                                &decode_add_any_blocks,
                                &SelectKernels::accumulate,
                                &Avx2Collect::collect,
                                &SelectKernels::count_reaching,
                                &SelectKernels::add_magnitudes,
                                &UpdateKernels::add_squares,
                                &UpdateKernels::momentum_update};

}  // namespace aiacc
