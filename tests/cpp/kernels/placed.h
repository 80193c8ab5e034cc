#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/dtype.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {

/// Elements `offset` bytes behind an address that suits all types, with room around them that
/// nobody may write.
class Placed {
 public:
  Placed(std::size_t bytes, std::size_t offset)
      : bytes_(bytes), begin_(kRoom + offset), memory_(begin_ + bytes + kRoom, kUntouched) {}
  template <class T>
  Placed(const std::vector<T>& elements, std::size_t offset)
      : Placed(elements.size() * sizeof(T), offset) {
    std::copy_n(reinterpret_cast<const unsigned char*>(elements.data()), bytes_, data());
  }

  unsigned char* data() { return memory_.data() + begin_; }
  template <class T>
  std::vector<T> values() const {
    std::vector<T> copied(bytes_ / sizeof(T));
    std::copy_n(memory_.data() + begin_, bytes_, reinterpret_cast<unsigned char*>(copied.data()));
    return copied;
  }
  template <class T>
  void set(std::size_t index, const T& value, std::size_t size = sizeof(T)) {
    std::memcpy(data() + index * size, &value, size);
  }
  bool intact() const {
    const auto is_untouched = [](unsigned char byte) { return byte == kUntouched; };
    const auto begin = memory_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(memory_.begin(), begin, is_untouched) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), memory_.end(), is_untouched);
  }

 private:
  static constexpr std::size_t kRoom = 64;
  static constexpr unsigned char kUntouched = 0xa5;

  std::size_t bytes_;
  std::size_t begin_;
  std::vector<unsigned char> memory_;
};

inline std::string text_of(const VectorLevel* level) {
  return level == nullptr ? "scalar" : level->name;
}
template <class Value>
std::string text_of(const Value& value) {
  return name_of(value);
}

/// Of a case: of a level, or the name of anything that has a name_of, or several.
struct NameOfCase {
  template <class Value>
  std::string operator()(const testing::TestParamInfo<Value>& test) const {
    return text_of(test.param);
  }
  template <class... Values>
  std::string operator()(const testing::TestParamInfo<std::tuple<Values...>>& test) const {
    return std::apply(
        [](const auto& first, const auto&... more) {
          return (text_of(first) + ... + ("_" + text_of(more)));
        },
        test.param);
  }
};

inline auto every_level() { return testing::ValuesIn(runnable_vector_levels()); }

}  // namespace aiacc
