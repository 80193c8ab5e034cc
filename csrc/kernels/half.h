#pragma once

#include <cstdint>

namespace aiacc {

/// IEEE binary16 and bfloat16 as bit patterns; conversions round to nearest even, keep NaN.
float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);
float bfloat16_to_float(std::uint16_t bits);
std::uint16_t float_to_bfloat16(float value);

}  // namespace aiacc
