#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>

namespace aiacc {

/// 128 bits that stand for a text: equal on all hosts for equal texts.
struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
};

inline bool operator==(const Digest& a, const Digest& b) {
  return a.high == b.high && a.low == b.low;
}
inline bool operator!=(const Digest& a, const Digest& b) { return !(a == b); }
inline bool operator<(const Digest& a, const Digest& b) {
  return std::tie(a.high, a.low) < std::tie(b.high, b.low);
}

/// FNV-1a with 128 bits (RFC 9923). Nobody who knows it is kept from finding two texts with one
/// digest; two names of a program have one with a chance of 2^-128.
inline Digest digest_of(std::string_view text) {
  __extension__ using Wide = unsigned __int128;
  constexpr Wide kPrime = (Wide{1} << 88) + 0x13b;
  Wide hash = (Wide{0x6c62272e07bb0142} << 64) + 0x62b821756295c58d;
  for (const char byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * kPrime;
  }
  return {static_cast<std::uint64_t>(hash >> 64), static_cast<std::uint64_t>(hash)};
}

}  // namespace aiacc
