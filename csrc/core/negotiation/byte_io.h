#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "csrc/base/error.h"
#include "csrc/control/round.h"

namespace aiacc {

/// Appends the parts of a round's message.
class Writer {
 public:
  explicit Writer(Bytes& out) : out_(out) {}

  template <typename T>
  void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(&value, sizeof value);
  }
  /// Seven bits per byte, the lowest first: small numbers are short.
  void put_number(std::uint64_t value) {
    while (value >= 0x80) {
      out_.push_back(static_cast<std::uint8_t>(value | 0x80));
      value >>= 7;
    }
    out_.push_back(static_cast<std::uint8_t>(value));
  }
  void put_text(std::string_view text) {
    put_number(text.size());
    put_bytes(text.data(), text.size());
  }
  void put_bytes(const void* data, std::size_t bytes) {
    const auto* first = static_cast<const std::uint8_t*>(data);
    out_.insert(out_.end(), first, first + bytes);
  }

 private:
  Bytes& out_;
};

/// Bytes that Writer::put_number appends.
inline std::size_t number_bytes(std::uint64_t value) {
  std::size_t bytes = 1;
  for (; value >= 0x80; value >>= 7) {
    ++bytes;
  }
  return bytes;
}

/// Takes a round's message apart. The bytes come from the network: everything throws
/// Error(kPeerLost) rather than to read beyond the end.
class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  explicit Reader(const Bytes& in) : in_(reinterpret_cast<const char*>(in.data()), in.size()) {}

  template <typename T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::string_view bytes = get_view(sizeof value);
    // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): of as many bytes
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::uint64_t get_number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = get<std::uint8_t>();
      value |= std::uint64_t{byte & 0x7FU} << shift;
      if ((byte & 0x80U) == 0) {
        return value;
      }
    }
    malformed("a number without end");
  }
  /// A number that is at most `limit`.
  std::uint64_t get_number(std::uint64_t limit, const char* what) {
    const std::uint64_t value = get_number();
    if (value > limit) {
      malformed(std::string(what) + " " + std::to_string(value));
    }
    return value;
  }
  /// A count of things of at least `each` bytes: bounded by what is left, so it can be trusted.
  std::size_t count(std::size_t limit, std::size_t each) {
    const std::uint64_t value = get_number();
    if (value > limit || value > left() / each) {
      malformed("a count of " + std::to_string(value));
    }
    return static_cast<std::size_t>(value);
  }
  std::string_view get_text(std::size_t limit) { return get_view(count(limit, 1)); }
  std::string_view get_view(std::size_t bytes) {
    if (bytes > left()) {
      malformed("truncated");
    }
    const std::string_view view = in_.substr(at_, bytes);
    at_ += bytes;
    return view;
  }
  std::size_t left() const { return in_.size() - at_; }
  /// Throws unless everything has been taken.
  void finish() const {
    if (left() > 0) {
      malformed("trailing bytes");
    }
  }

  [[noreturn]] static void malformed(const std::string& what) {
    throw Error(Code::kPeerLost,
                "[negotiation] malformed round message (" + what +
                    "); do all ranks run the same aiacc version?");
  }

 private:
  std::string_view in_;
  std::size_t at_ = 0;
};

}  // namespace aiacc
