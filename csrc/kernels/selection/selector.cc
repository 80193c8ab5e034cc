#include "csrc/kernels/selection/selector.h"

#include <algorithm>
#include <cstring>

#include "csrc/base/error.h"
#include "csrc/kernels/selection/mstopk.h"
#include "csrc/kernels/selection/radix.h"
#include "csrc/kernels/selection/random_below.h"

namespace aiacc {
Selector::Selector(const Source& source,
                   void* wire,
                   float* residual,
                   std::size_t k,
                   std::uint64_t seed,
                   SelectScratch& scratch)
    : source_(source),
      wire_(static_cast<unsigned char*>(wire)),
      residual_(residual),
      k_(k),
      seed_(seed),
      scratch_(scratch),
      candidates_(source, k, scratch) {}

Selection Selector::tracked(ThresholdTrack& track) {
  const float low = candidate_threshold(track);
  Candidates::Found found;
  found.scan = Scan::kNone;
  if (low > 0.0F) {
    found = candidates_.find(magnitude_bits(low));
    if (found.largest >= kInfinityBits) {
      return not_finite();
    }
  }
  Selection selection;
  if (found.scan == Scan::kHit) {
    selection.threshold = take_of_candidates();
  } else {
    selection = exact();
    selection.fell_back = found.scan != Scan::kNone;
  }
  if (selection.finite) {
    track = after_step(track, found.scan, selection.threshold, k_, found.seen);
  }
  return selection;
}

Selection Selector::exact() {
  const Candidates::Found found = candidates_.find(0);
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

Selection Selector::reference() {
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

Selection Selector::nothing() {
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

void Selector::start(const Bracket& bracket) {
  AIACC_CHECK(bracket.above <= k_ && k_ <= bracket.reached);
  high_ = magnitude_bits(bracket.high);
  low_ = magnitude_bits(bracket.low);
  left_in_run_ = k_ - bracket.above;
  before_run_ = random_below(seed_, bracket.reached - k_ + 1);
}

void Selector::offer(float value, std::uint32_t index) {
  const std::uint32_t bits = magnitude_bits(value);
  if (bits < low_) {
    return;
  }
  if (bits < high_) {
    if (before_run_ > 0) {
      --before_run_;
      return;
    }
    if (left_in_run_ == 0) {
      return;
    }
    --left_in_run_;
  }
  write_pair(value, index);
  if (residual_ != nullptr) {
    residual_[index] = 0.0F;
  }
}

void Selector::write_pair(float value, std::uint32_t index) {
  AIACC_CHECK(written_ < k_);
  std::memcpy(wire_ + written_ * sizeof value, &value, sizeof value);
  std::memcpy(wire_ + k_ * sizeof value + written_ * sizeof index, &index, sizeof index);
  ++written_;
}

float Selector::take_of_candidates() {
  const Bracket bracket = candidates_.bracket();
  start(bracket);
  std::size_t next = 0;
  const std::size_t count = source_.count();
  const std::size_t step = residual_ == nullptr ? count : Source::kBlock;
  for (std::size_t at = 0; at < count; at += step) {
    const std::size_t end = std::min(at + step, count);
    if (residual_ != nullptr) {
      source_.read(residual_ + at, at, end - at);
    }
    for (; next < candidates_.size() && candidates_.index(next) < end; ++next) {
      offer(candidates_.value(next), candidates_.index(next));
    }
  }
  AIACC_CHECK(written_ == k_);
  return bracket.low;
}

void Selector::take_of_all(const Bracket& bracket) {
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
  AIACC_CHECK(written_ == k_);
}

Selection Selector::not_finite() {
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
    write_pair(is_bad ? value : 0.0F, static_cast<std::uint32_t>(is_bad ? bad : i));
  }
  Selection selection;
  selection.finite = false;
  return selection;
}

}  // namespace aiacc
