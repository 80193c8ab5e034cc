#include "csrc/engines/coding.h"

#include <algorithm>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr double kMillion = 1e6;

BlockFormat block_format(WireFormat format) {
  switch (format) {
    case WireFormat::kInt4Blocks:
      return BlockFormat::kInt4;
    case WireFormat::kFloat8Blocks:
      return BlockFormat::kFloat8E4M3;
    default:
      return BlockFormat::kInt8;
  }
}

}  // namespace

BlockCode Coding::block_code() const { return {block_format(format), detail & ~kStochastic}; }

std::size_t Coding::selected(std::size_t count) const {
  return selected_count(count, millionths() / kMillion);
}

SelectMode Coding::mode() const {
  return (detail & kReference) != 0 ? SelectMode::kReference
         : (detail & kExact) != 0   ? SelectMode::kExact
                                    : SelectMode::kTracked;
}

std::uint32_t Coding::thinning() const {
  if (!in_blocks()) {
    const std::uint32_t bytes = format == WireFormat::kLargest ? 8 : 4;
    return std::max(1U, 1'000'000 / (bytes * std::max(1U, millionths())));
  }
  return format == WireFormat::kInt4Blocks ? 2 : 1;
}

std::string coding_problem(WireFormat format, std::uint32_t detail) {
  if (!is_coded(format)) {
    return detail == 0 ? "" : "number " + std::to_string(detail) + " (expected none)";
  }
  const Coding coding{format, detail};
  if (coding.in_blocks()) {
    try {
      check(coding.block_code());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  if ((detail & Coding::kExact) != 0 && (detail & Coding::kReference) != 0) {
    return "both exact and reference (expected at most one of them)";
  }
  const std::uint32_t others =
      format == WireFormat::kRandom ? Coding::kExact | Coding::kReference : Coding::kUnbiased;
  const std::uint32_t millionths = coding.millionths() | (detail & others);
  if (millionths < 1 || millionths > Coding::kMostMillionths) {
    return "density of " + std::to_string(millionths) + " millionths (expected 1 to " +
           std::to_string(Coding::kMostMillionths) + "); send denser tensors in blocks of int8";
  }
  return "";
}

}  // namespace aiacc
