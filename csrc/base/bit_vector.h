#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aiacc {

/// Growable vector of bits in 64-bit words; the words are what travels.
class BitVector {
 public:
  std::size_t words() const { return words_.size(); }
  std::uint64_t word(std::size_t index) const { return words_[index]; }
  std::uint64_t& word(std::size_t index) { return words_[index]; }

  /// Makes room for `bits` bits; new bits are 0. Never shrinks.
  void grow(std::size_t bits) {
    if (words_.size() * 64 < bits) {
      words_.resize((bits + 63) / 64, 0);
    }
  }
  bool test(std::size_t bit) const { return ((words_[bit / 64] >> (bit % 64)) & 1U) != 0; }
  void set(std::size_t bit) { words_[bit / 64] |= std::uint64_t{1} << (bit % 64); }
  void clear(std::size_t bit) { words_[bit / 64] &= ~(std::uint64_t{1} << (bit % 64)); }
  /// Sets every bit that is set in `other`, which has as many words.
  void merge(const BitVector& other) {
    for (std::size_t index = 0; index < words_.size(); ++index) {
      words_[index] |= other.words_[index];
    }
  }
  void assign(std::size_t words, std::uint64_t value) { words_.assign(words, value); }

  /// Calls visit(bit) for every 1, ascending.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (std::size_t index = 0; index < words_.size(); ++index) {
      for (std::uint64_t left = words_[index]; left != 0; left &= left - 1) {
        visit(index * 64 + static_cast<std::size_t>(__builtin_ctzll(left)));
      }
    }
  }

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace aiacc
