#include "csrc/kernels/select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/selection/mstopk.h"
#include "csrc/kernels/selection/radix.h"
#include "csrc/kernels/selection/source.h"
#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

/// What a kernel may write beyond the pairs that it found.
constexpr std::size_t kSlack = Source::kBlock + 16;

/// The same on every machine, unlike the distributions of the standard library: splitmix64, and
/// the upper half of a product of 128 bits. `bound` is positive.
std::size_t random_below(std::uint64_t seed, std::uint64_t bound) {
  __extension__ using Product = unsigned __int128;
  std::uint64_t x = seed + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  x ^= x >> 31;
  return static_cast<std::size_t>((Product{x} * bound) >> 64);
}

/// The pairs on the wire, written one by one.
class PairWriter {
 public:
  PairWriter(void* wire, std::size_t k)
      : values_(static_cast<unsigned char*>(wire)), indices_(values_ + k * sizeof(float)), k_(k) {}

  void add(float value, std::uint32_t index) {
    AIACC_CHECK(written_ < k_);
    std::memcpy(values_ + written_ * sizeof value, &value, sizeof value);
    std::memcpy(indices_ + written_ * sizeof index, &index, sizeof index);
    ++written_;
  }
  std::size_t written() const { return written_; }

 private:
  unsigned char* values_;
  unsigned char* indices_;
  std::size_t k_;
  std::size_t written_ = 0;
};

/// One selection, which finds a bracket and then takes k elements by it.
class Selector {
 public:
  Selector(const Source& source,
           void* wire,
           float* residual,
           std::size_t k,
           std::uint64_t seed,
           SelectScratch& scratch)
      : source_(source),
        pairs_(wire, k),
        residual_(residual),
        k_(k),
        seed_(seed),
        scratch_(scratch) {
    scratch_.values.resize(std::max(scratch_.values.size(), room() + kSlack));
    scratch_.indices.resize(scratch_.values.size());
  }

  Selection tracked(ThresholdTrack& track) {
    const float low = candidate_threshold(track);
    if (!(low > 0.0F)) {
      const Selection selection = exact();
      if (selection.finite) {
        track = after_step(track, Scan::kNone, selection.threshold, k_, 0);
      }
      return selection;
    }
    const Candidates found = find_candidates(magnitude_bits(low));
    if (found.largest >= kInfinityBits) {
      return not_finite();
    }
    Selection selection;
    if (found.scan == Scan::kHit) {
      selection.threshold = take_of_candidates();
    } else {
      selection = exact();
      selection.fell_back = true;
    }
    track = after_step(track, found.scan, selection.threshold, k_, found.seen);
    return selection;
  }

  Selection exact() {
    const Candidates found = find_candidates(0);
    if (found.largest >= kInfinityBits) {
      return not_finite();
    }
    Selection selection;
    if (found.scan == Scan::kHit) {
      selection.threshold = take_of_candidates();
    } else {
      const Bracket bracket = radix_bracket(source_, radix_start(source_), k_);
      take_of_all(bracket);
      selection.threshold = bracket.low;
    }
    return selection;
  }

  /// Without any pair the residual takes everything.
  Selection nothing() {
    const std::uint32_t largest =
        source_.for_each_block([](const float*, std::size_t, std::size_t) {});
    if (largest >= kInfinityBits) {
      return not_finite();
    }
    Selection selection;
    selection.threshold = float_of_bits(kInfinityBits);
    take_of_all({selection.threshold, selection.threshold, 0, 0});
    return selection;
  }

  Selection reference() {
    const Magnitudes magnitudes = measure_magnitudes(source_);
    if (!magnitudes.finite) {
      return not_finite();
    }
    const Bracket bracket = bisect(source_, magnitudes, k_);
    take_of_all(bracket);
    Selection selection;
    selection.threshold = bracket.low;
    return selection;
  }

 private:
  std::size_t room() const { return candidate_room(source_.count(), k_); }

  struct Candidates {
    Scan scan = Scan::kHit;
    std::size_t seen = 0;
    std::uint32_t largest = 0;  ///< bits of the largest magnitude of all
  };

  /// One pass that keeps what reaches `low`. Where this gets too much, the k-th largest so far is
  /// the new `low`, for the k-th largest of all cannot be less. Bounded for any order of the
  /// elements: each thinning makes room for half of what is not among the k, or is the last.
  Candidates find_candidates(std::uint32_t low) {
    Candidates found;
    candidates_ = 0;
    found.largest = source_.for_each_block([&](const float* block, std::size_t n, std::size_t at) {
      if (found.scan == Scan::kTooMany) {
        return;
      }
      const std::size_t more = source_.level().collect(scratch_.values.data() + candidates_,
                                                       scratch_.indices.data() + candidates_,
                                                       block,
                                                       n,
                                                       low,
                                                       static_cast<std::uint32_t>(at));
      candidates_ += more;
      found.seen += more;
      if (candidates_ > room()) {
        low = thin_candidates();
        if (candidates_ > k_ + (room() - k_) / 2) {
          found.scan = Scan::kTooMany;
        }
      }
    });
    if (candidates_ < k_) {
      found.scan = Scan::kTooFew;
    }
    return found;
  }

  Bracket bracket_of_candidates() const {
    const Source candidates(source_.level(), scratch_.values.data(), nullptr, candidates_, 1.0F);
    return radix_bracket(candidates, radix_start(candidates), k_);
  }

  /// Keeps the k largest and their equals. Returns the bits of the least.
  std::uint32_t thin_candidates() {
    const std::uint32_t low = magnitude_bits(bracket_of_candidates().low);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < candidates_; ++i) {
      scratch_.values[kept] = scratch_.values[i];
      scratch_.indices[kept] = scratch_.indices[i];
      kept += static_cast<std::size_t>(magnitude_bits(scratch_.values[i]) >= low);
    }
    candidates_ = kept;
    return low;
  }

  /// Starts to take by a bracket: a run of the elements between its thresholds is left to choose.
  void start(const Bracket& bracket) {
    high_ = magnitude_bits(bracket.high);
    low_ = magnitude_bits(bracket.low);
    const std::size_t missing = k_ - bracket.above;
    const std::size_t between = bracket.reached - bracket.above;
    AIACC_CHECK(bracket.above <= k_ && missing <= between);
    skipped_ = random_below(seed_, between - missing + 1);
    taken_ = missing;
  }

  void offer(float value, std::uint32_t index) {
    const std::uint32_t bits = magnitude_bits(value);
    if (bits < low_) {
      return;
    }
    if (bits < high_) {
      if (skipped_ > 0) {
        --skipped_;
        return;
      }
      if (taken_ == 0) {
        return;
      }
      --taken_;
    }
    pairs_.add(value, index);
    if (residual_ != nullptr) {
      residual_[index] = 0.0F;
    }
  }

  /// Takes the k largest of the candidates, which are in the order of their indices, and returns
  /// the least of their magnitudes.
  float take_of_candidates() {
    const Bracket bracket = bracket_of_candidates();
    start(bracket);
    std::size_t next = 0;
    const std::size_t step = residual_ == nullptr ? source_.count() : Source::kBlock;
    for (std::size_t at = 0; at < source_.count(); at += step) {
      const std::size_t end = std::min(at + step, source_.count());
      if (residual_ != nullptr) {
        source_.read(residual_ + at, at, end - at);
      }
      for (; next < candidates_ && scratch_.indices[next] < end; ++next) {
        offer(scratch_.values[next], scratch_.indices[next]);
      }
    }
    AIACC_CHECK(pairs_.written() == k_);
    return bracket.low;
  }

  /// The same of all elements, where the candidates may be too many.
  void take_of_all(const Bracket& bracket) {
    start(bracket);
    source_.for_each_block([&](const float* block, std::size_t n, std::size_t at) {
      const std::size_t found = source_.level().collect(scratch_.values.data(),
                                                        scratch_.indices.data(),
                                                        block,
                                                        n,
                                                        low_,
                                                        static_cast<std::uint32_t>(at));
      if (residual_ != nullptr) {
        std::copy_n(block, n, residual_ + at);
      }
      for (std::size_t i = 0; i < found; ++i) {
        offer(scratch_.values[i], scratch_.indices[i]);
      }
    });
    AIACC_CHECK(pairs_.written() == k_);
  }

  /// The first element that is not finite, among zeros of the lowest other indices.
  Selection not_finite() {
    std::size_t bad = source_.count();
    float value = 0.0F;
    source_.for_each_block([&](const float* block, std::size_t n, std::size_t at) {
      for (std::size_t i = 0; i < n && bad == source_.count(); ++i) {
        if (magnitude_bits(block[i]) >= kInfinityBits) {
          bad = at + i;
          value = block[i];
        }
      }
    });
    for (std::size_t i = 0; i < k_; ++i) {
      const bool is_bad = i == bad || (i + 1 == k_ && bad >= k_);
      pairs_.add(is_bad ? value : 0.0F, static_cast<std::uint32_t>(is_bad ? bad : i));
    }
    Selection selection;
    selection.finite = false;
    return selection;
  }

  const Source& source_;
  PairWriter pairs_;
  float* residual_;
  std::size_t k_;
  std::uint64_t seed_;
  SelectScratch& scratch_;
  std::size_t candidates_ = 0;
  std::uint32_t high_ = 0;
  std::uint32_t low_ = 0;
  std::size_t skipped_ = 0;  ///< of the run: elements between the thresholds that come before it
  std::size_t taken_ = 0;    ///< of the run: what is left of it
};

}  // namespace

std::size_t pairs_bytes(std::size_t k) { return k * (sizeof(float) + sizeof(std::uint32_t)); }

std::size_t selected_count(std::size_t count, double density) {
  if (!(density >= 0.0 && density <= 1.0)) {
    throw Error(Code::kInvalidArgument,
                "[kernels] density " + std::to_string(density) +
                    " (expected 0 to 1); give the share of elements to send, such as 0.01");
  }
  const auto wanted = static_cast<std::size_t>(std::ceil(density * static_cast<double>(count)));
  return std::min(count, std::max<std::size_t>(wanted, 1));
}

Selection select_largest(void* wire,
                         const float* in,
                         float* residual,
                         std::size_t count,
                         std::size_t k,
                         float factor,
                         SelectMode mode,
                         std::uint64_t seed,
                         ThresholdTrack& track,
                         SelectScratch& scratch) {
  static const VectorLevel& level = *runnable_vector_levels().front();
  return select_largest(wire, in, residual, count, k, factor, mode, seed, track, scratch, level);
}

Selection select_largest(void* wire,
                         const float* in,
                         float* residual,
                         std::size_t count,
                         std::size_t k,
                         float factor,
                         SelectMode mode,
                         std::uint64_t seed,
                         ThresholdTrack& track,
                         SelectScratch& scratch,
                         const VectorLevel& level) {
  AIACC_CHECK(k <= count && count <= UINT32_MAX);
  const Source source(level, in, residual, count, factor);
  Selector selector(source, wire, residual, k, seed, scratch);
  if (k == 0) {
    return selector.nothing();
  }
  switch (mode) {
    case SelectMode::kTracked:
      return selector.tracked(track);
    case SelectMode::kExact:
      return selector.exact();
    case SelectMode::kReference:
      return selector.reference();
  }
  return {};
}

void scatter_add(float* out, const void* wire, std::size_t k, std::size_t count, float factor) {
  const auto* values = static_cast<const unsigned char*>(wire);
  const auto* indices = values + k * sizeof(float);
  const auto index_at = [&](std::size_t i) {
    std::uint32_t index;
    std::memcpy(&index, indices + i * sizeof index, sizeof index);
    return index;
  };
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < k; ++i) {
    largest = std::max(largest, index_at(i));
  }
  if (k > 0 && largest >= count) {
    throw Error(Code::kInternal,
                "[kernels] a pair of another rank has index " + std::to_string(largest) +
                    " (expected less than " + std::to_string(count) +
                    "); check that all ranks run the same aiacc");
  }
  for (std::size_t i = 0; i < k; ++i) {
    float value;
    std::memcpy(&value, values + i * sizeof value, sizeof value);
    out[index_at(i)] += factor * value;
  }
}

}  // namespace aiacc
