#pragma once

#include <cstddef>
#include <cstdint>

namespace aiacc {

/// k of `count` elements by chance: one of each of k runs of consecutive elements, whose lengths
/// differ by one at most. All that have the same seed choose the same, so nobody sends where they
/// are. An element of a run of n is chosen with a probability of 1 / n (to n / 2^40).
class RandomSample {
 public:
  /// k <= count, and no run is longer than 2^24.
  RandomSample(std::size_t count, std::size_t k, std::uint64_t seed);

  std::size_t count() const { return count_; }
  std::size_t size() const { return k_; }
  /// Elements of run `i`.
  std::size_t run(std::size_t i) const { return length_ + (i < longer_ ? 1 : 0); }
  /// Where the element of run `i` is. They ascend.
  std::size_t place(std::size_t i) const;

 private:
  std::size_t count_;
  std::size_t k_;
  std::uint64_t seed_;
  std::size_t length_;  ///< of all runs but the first ones
  std::size_t longer_;  ///< how many have one element more
};

/// Takes the sample of t[i] = in[i] + residual[i]: without the second term where `residual` is
/// null. Weighted: each element times the length of its run, so that a sample, with zeros
/// elsewhere, has the expected value t. What is left stays in the residual: t[i], and t[i] minus
/// the sample where it was taken, which is 0 unless weighted.
///
/// If any t[i] is NaN or infinite, all of the sample is NaN, so that every rank sees it, and the
/// residual stays as it is. So the residual is written only after everything was read.
/// `sample` has places.size(); `in` and `residual` places.count(), and do not overlap.
void take_sample(
    float* sample, const float* in, float* residual, const RandomSample& places, bool weighted);

/// Writes the sample to its places in `out`, and zeros elsewhere.
void put_sample(float* out, const float* sample, const RandomSample& places);

}  // namespace aiacc
