#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/engine.h"
#include "tests/cpp/kernels/elements.h"

/// What every engine must do, as checks that all ranks run with the same arguments.
namespace aiacc {

/// Of float32.
inline constexpr Reduction kSum{DataType::kFloat32, ReduceOp::kSum};

/// `count` elements: those of `first`, which is not empty, over and over. Copied, because
/// sanitizers take long for a loop over all of them.
template <class T>
std::vector<T> repeated(const std::vector<T>& first, std::size_t count) {
  std::vector<T> elements(count);
  std::size_t done = std::min(count, first.size());
  std::copy_n(first.begin(), done, elements.begin());
  while (done < count) {
    const std::size_t more = std::min(done, count - done);
    std::copy_n(elements.begin(), more, elements.begin() + static_cast<std::ptrdiff_t>(done));
    done += more;
  }
  return elements;
}

/// Bytes that look random, and repeat themselves after a prime number of them.
inline std::vector<std::uint8_t> bytes_for(unsigned seed, std::size_t count) {
  return repeated(any_elements<std::uint8_t>(std::min<std::size_t>(4093, count), seed), count);
}

/// Small integers, so that sums and products of up to 8 ranks are exact in every type (integers
/// wrap around, as the reference does).
constexpr std::size_t kPeriod = 5;
template <class T>
std::vector<T> rank_numbers(std::size_t count, int rank) {
  std::vector<T> elements(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const auto value = static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 3) % kPeriod);
    if constexpr (kIs16Bit<T>) {
      elements[i] = T::from(static_cast<float>(1 << (value % 2)));
    } else if constexpr (std::is_same_v<T, Bool>) {
      elements[i].bits = static_cast<std::uint8_t>(value % 2);
    } else {
      elements[i] = static_cast<T>(value + 1);
    }
  }
  return repeated(elements, count);
}

template <class T>
std::vector<T> reduced_numbers(std::size_t count, int size, ReduceOp op) {
  std::vector<T> result = rank_numbers<T>(kPeriod, 0);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<T> more = rank_numbers<T>(kPeriod, rank);
    for (std::size_t i = 0; i < kPeriod; ++i) {
      result[i] = combine_plainly(result[i], more[i], op);
    }
  }
  return repeated(result, count);
}

template <class T>
void expect_equal_bits(const std::vector<T>& expected,
                       const std::vector<T>& got,
                       const std::string& what) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  if (got.empty() || std::memcmp(expected.data(), got.data(), got.size() * sizeof(T)) == 0) {
    return;
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(0, std::memcmp(&expected[i], &got[i], sizeof(T)))
        << what << ": element " << i << " of " << got.size() << " differs";
  }
}

/// `all_reduce(send, recv, reduction)`
using ReduceCall = std::function<void(const void*, void*, const Reduction&)>;

/// The call is made out of place, in place, and with a factor.
void check_all_reduce_call(int rank,
                           int size,
                           std::size_t count,
                           DataType dtype,
                           ReduceOp op,
                           const ReduceCall& all_reduce);
void check_all_reduce(
    Engine& engine, int lane, int rank, int size, std::size_t count, DataType dtype, ReduceOp op);

void check_broadcast(Engine& engine, int lane, int rank, int root, std::size_t bytes);

/// Rank 1 has nothing to give, the others different lengths around `scale`.
void check_all_gather(Engine& engine, int lane, int rank, int size, std::size_t scale);

/// Rank 1 gets nothing, the others different numbers of elements around `scale`.
std::vector<std::size_t> uneven_counts(int size, std::size_t scale);

/// The call is made with and without a factor.
void check_reduce_scatter(
    Engine& engine, int lane, int rank, const PerRank& counts, DataType dtype, ReduceOp op);

/// Between two ranks travels sometimes nothing, otherwise bytes around `scale`.
void check_all_to_all(Engine& engine, int lane, int rank, int size, std::size_t scale);

/// Buffers of these numbers of elements, as many of them under way as there may be.
void check_pieces(Engine& engine,
                  int lane,
                  int rank,
                  int size,
                  const PerRank& counts,
                  const Reduction& reduction);

/// Every operation once on a lane, to see that a new engine is connected properly.
/// `exchanges`: all-to-alls, of which an engine runs one at a time.
void check_every_operation(Engine& engine, int lane, int rank, int size, bool exchanges = true);

}  // namespace aiacc
