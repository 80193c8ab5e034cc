#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/base/dtype.h"
#include "csrc/kernels/quantise.h"
#include "csrc/kernels/select.h"

namespace aiacc {

/// A coded wire format with its numbers: what float32 become to travel.
///
/// Blocks (kernels/quantise.h): `detail` is the elements of a block, plus kStochastic. The largest
/// (kernels/select.h): the density in millionths, plus kExact or kReference. Random ones
/// (kernels/selection/random_sample.h): the density in millionths, plus kUnbiased.
struct Coding {
  static constexpr std::uint32_t kStochastic = 1U << 16;
  static constexpr std::uint32_t kExact = 1U << 20;
  static constexpr std::uint32_t kReference = 1U << 21;
  static constexpr std::uint32_t kUnbiased = 1U << 22;
  /// Above it pairs of values and indices gain little over int8, and MSTopK finds too few.
  static constexpr std::uint32_t kMostMillionths = 100'000;

  WireFormat format = WireFormat::kInt8Blocks;
  std::uint32_t detail = 256;

  bool in_blocks() const { return format < WireFormat::kLargest; }
  BlockCode block_code() const;
  bool stochastic() const { return (detail & kStochastic) != 0; }
  bool unbiased() const { return (detail & kUnbiased) != 0; }
  /// Elements that travel of so many.
  std::size_t selected(std::size_t count) const;
  SelectMode mode() const;
  /// The density of what is not in blocks.
  std::uint32_t millionths() const { return detail & ~(kExact | kReference | kUnbiased); }
  /// How many times as large as tensors in 8 bits those may be that travel together: units are
  /// counted in bytes on the wire.
  std::uint32_t thinning() const;
};

/// "" or what is wrong with the numbers of a coded format; with those of another, which has none.
std::string coding_problem(WireFormat format, std::uint32_t detail);

}  // namespace aiacc
