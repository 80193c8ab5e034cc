#pragma once

#include <cstdint>

namespace aiacc {
namespace {

/// The whole number from 2 on that a factor is the reciprocal of, 0 if there is none.
/// Internal linkage, because each vector level compiles its own copy.
inline std::uint32_t reciprocal_of(double factor) {
  const double inverse = 1.0 / factor;
  if (!(inverse >= 1.5 && inverse <= 1 << 24)) {
    return 0;
  }
  const auto whole =
      static_cast<std::uint32_t>(inverse + 0.5);  // NOLINT(bugprone-incorrect-roundings)
  return 1.0 / whole == factor ? whole : 0;
}

/// The same for floats, without powers of two: to multiply by their reciprocals is exact, and
/// faster.
inline std::uint32_t divisor_of(double factor) {
  const std::uint32_t whole = reciprocal_of(factor);
  return (whole & (whole - 1)) != 0 ? whole : 0;
}

}  // namespace
}  // namespace aiacc
