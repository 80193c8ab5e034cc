// Selections and block codes of the core for bench/selection.py and bench/quantisation.py, which
// call them by ctypes: there they take turns with torch's. One thread, the widest instructions that
// the processor has. All numbers are of 64 bits.

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/quantise.h"
#include "csrc/kernels/select.h"

#define AIACC_BENCH extern "C" __attribute__((visibility("default")))

namespace {

/// What a buffer keeps from step to step.
struct Selector {
  aiacc::ThresholdTrack track;
  aiacc::SelectScratch scratch;
};

aiacc::BlockCode code_of(std::size_t format) {
  return {static_cast<aiacc::BlockFormat>(format), 256};
}

}  // namespace

/// Stays until the process ends.
AIACC_BENCH Selector* bench_selector() { return new Selector; }

/// 1 if all was finite, as it has to be.
AIACC_BENCH int bench_select(Selector* selector,
                             void* wire,
                             const float* in,
                             float* residual,
                             std::size_t count,
                             std::size_t k,
                             std::size_t mode) {
  const auto how = static_cast<aiacc::SelectMode>(mode);
  aiacc::ThresholdTrack& track = selector->track;
  aiacc::SelectScratch& scratch = selector->scratch;
  return aiacc::select_largest(wire, in, residual, count, k, 0.5F, how, 7, track, scratch).finite;
}

AIACC_BENCH std::size_t bench_encoded_bytes(std::size_t count, std::size_t format) {
  return aiacc::encoded_bytes(count, code_of(format));
}

AIACC_BENCH void bench_encode(void* wire,
                              const void* in,
                              void* residual,
                              std::size_t count,
                              std::size_t format,
                              std::size_t stochastic) {
  const aiacc::Rounding rounding = {stochastic != 0, 1};
  aiacc::encode_blocks(wire, in, residual, count, code_of(format), 1.0F, rounding, 0);
}

AIACC_BENCH void bench_decode(void* out, const void* wire, std::size_t count, std::size_t format) {
  aiacc::decode_blocks(out, wire, count, code_of(format), 1.0F);
}

AIACC_BENCH void bench_decode_add(void* out,
                                  const void* wire,
                                  std::size_t count,
                                  std::size_t format) {
  aiacc::decode_add_blocks(out, wire, count, code_of(format));
}
