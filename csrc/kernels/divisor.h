#pragma once

#include <cstdint>

namespace aiacc {
namespace {

/// The whole number that a factor is the reciprocal of, 0 if there is none. Powers of two are left
/// out: to multiply by their reciprocals is exact, and faster.
/// Internal linkage, because each vector level compiles its own copy.
inline std::uint32_t divisor_of(double factor) {
  const double inverse = 1.0 / factor;
  if (!(inverse >= 2.5 && inverse <= 1 << 24)) {
    return 0;
  }
  const auto whole = static_cast<std::uint32_t>(inverse + 0.5);
  return (whole & (whole - 1)) != 0 && 1.0 / whole == factor ? whole : 0;
}

}  // namespace
}  // namespace aiacc
