#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aiacc {

/// Of any size from -1 to 1.
inline std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::vector<float> made(count);
  for (float& value : made) {
    seed = seed * 1664525U + 1013904223U;
    value = static_cast<float>(seed >> 8) / static_cast<float>(1U << 23) - 1.0F;
  }
  return made;
}

/// Floats with room before and after, `shift` elements behind an aligned address.
class Array {
 public:
  Array(const std::vector<float>& values, std::size_t shift)
      : memory_(values.size() + shift + 8, kRoom), count_(values.size()) {
    const std::size_t address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = (16 - address % 16) % 16 / sizeof(float) + shift;
    std::copy(values.begin(), values.end(), data());
  }
  Array(Array&&) = default;  // memory stays where it is

  float* data() { return memory_.data() + begin_; }
  std::size_t count() const { return count_; }
  std::vector<float> values() const {
    const float* begin = memory_.data() + begin_;
    return {begin, begin + count_};
  }
  bool intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + count_) && memory_[i] != kRoom) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr float kRoom = 0x1.5ap3F;

  std::vector<float> memory_;
  std::size_t begin_ = 0;
  std::size_t count_;
};

inline bool all_intact(const std::vector<Array>& arrays) {
  return std::all_of(
      arrays.begin(), arrays.end(), [](const Array& array) { return array.intact(); });
}

}  // namespace aiacc
