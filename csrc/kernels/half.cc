#include "csrc/kernels/half.h"

#include "csrc/kernels/half_bits.h"

namespace aiacc {

float half_to_float(std::uint16_t bits) { return half_bits_to_float(bits); }
std::uint16_t float_to_half(float value) { return float_to_half_bits(value); }
float bfloat16_to_float(std::uint16_t bits) { return bfloat16_bits_to_float(bits); }
std::uint16_t float_to_bfloat16(float value) { return float_to_bfloat16_bits(value); }

}  // namespace aiacc
