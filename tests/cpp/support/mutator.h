#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>

#include "csrc/control/round.h"

namespace aiacc {

/// Damages valid messages in the ways that networks, bugs and strangers do. Same seed, same damage.
class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  /// One to four changes; the result may by chance equal the input.
  Bytes damage(Bytes bytes) {
    for (std::size_t left = 1 + below(4); left > 0; --left) {
      change(bytes);
    }
    return bytes;
  }

  /// 0 .. limit-1.
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }

 private:
  void change(Bytes& bytes) {
    const std::size_t at = below(bytes.size());
    switch (below(7)) {
      case 0:
        return bytes.empty() ? void()
                             : void(bytes[at] ^= static_cast<std::uint8_t>(1U << below(8)));
      case 1:
        return bytes.empty() ? void() : void(bytes[at] = static_cast<std::uint8_t>(random_()));
      case 2:
        return bytes.resize(at);
      case 3:
        for (std::size_t left = below(64); left > 0; --left) {
          bytes.push_back(static_cast<std::uint8_t>(random_()));
        }
        return;
      case 4:
        return put_absurd_length(bytes, at);
      case 5: {
        const std::size_t end = at + below(bytes.size() - at);
        bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                    bytes.begin() + static_cast<std::ptrdiff_t>(end));
        return;
      }
      default: {
        const std::size_t end = at + below(std::min<std::size_t>(bytes.size() - at, 64));
        const Bytes part(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                         bytes.begin() + static_cast<std::ptrdiff_t>(end));
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), part.begin(), part.end());
        return;
      }
    }
  }

  void put_absurd_length(Bytes& bytes, std::size_t at) {
    static constexpr std::uint32_t kLengths[] = {
        0, 1, 0x7f, 0xff, 0xffff, 0x10000, 0xffffff, 0x1000000, 0x7fffffff, 0x80000000, 0xffffffff};
    const std::uint32_t length = kLengths[below(std::size(kLengths))];
    if (bytes.size() >= sizeof length) {
      std::memcpy(
          bytes.data() + std::min(at, bytes.size() - sizeof length), &length, sizeof length);
    }
  }

  std::mt19937 random_;
};

}  // namespace aiacc
