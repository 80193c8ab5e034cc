#pragma once

// Selections by whoever has the kernels (their bodies on the host, a GPU) against the CPU's: every
// pair, every bit of the residual and of the threshold's track.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "csrc/kernels/gpu/selection.h"
#include "tests/cpp/kernels/selection/selected.h"
#include "tests/gpu/mirrored.h"

namespace aiacc {

enum class Feedback { kNone, kInPlace, kMoves };
inline constexpr Feedback kFeedbacks[] = {Feedback::kNone, Feedback::kInPlace, Feedback::kMoves};

/// What the kernels have.
inline constexpr SelectMode kGpuSelectModes[] = {SelectMode::kTracked, SelectMode::kExact};

struct SelectionCase {
  SelectMode mode;
  std::size_t count;
  std::size_t k;
  Feedback feedback = Feedback::kMoves;
  std::size_t shift = 0;  ///< of floats, from an aligned address
  float factor = -0.7F;
};

/// One buffer on both sides, step by step.
class SelectionOfBoth {
 public:
  SelectionOfBoth(GpuRig& rig, const SelectionCase& job, const ThresholdTrack& track = {})
      : rig_(rig),
        job_(job),
        track_(track),
        residuals_{{rig, std::vector<float>(job.count), job.shift},
                   {rig, std::vector<float>(job.count, NAN), job.shift}},
        wire_(rig, std::vector<float>(2 * job.k)),
        state_(rig, {state_of(track)}),
        workspace_(rig, std::vector<unsigned char>(select_workspace_bytes(job.count, job.k))) {}

  /// A step of `run(plan)` and of the CPU on the same numbers. What differs, or "".
  template <class Run>
  std::string step(const std::vector<float>& elements, const Run& run) {
    const bool keeps = job_.feedback != Feedback::kNone;
    const bool moves = job_.feedback == Feedback::kMoves;
    Mirrored<float> in(rig_, elements, job_.shift);
    Mirrored<float>& before = residuals_[moves ? steps_ % 2 : 0];
    Mirrored<float>& after = residuals_[moves ? 1 - steps_ % 2 : 0];
    const ThresholdTrack known = track_of_kernels();
    run(plan_selection(wire_.device(),
                       in.device(),
                       keeps ? before.device() : nullptr,
                       keeps ? after.device() : nullptr,
                       job_.count,
                       job_.k,
                       job_.factor,
                       job_.mode,
                       steps_,
                       state_.device(),
                       workspace_.device()));
    if (moves) {
      std::copy_n(before.host(), job_.count, after.host());
    }
    const Selection expected = select_largest(wire_.host(),
                                              in.host(),
                                              keeps ? after.host() : nullptr,
                                              job_.count,
                                              job_.k,
                                              job_.factor,
                                              job_.mode,
                                              steps_,
                                              track_,
                                              scratch_);
    finite_ = expected.finite;
    ++steps_;
    const SelectState got = state_.read().front();
    const char* const what =
        got.result.finite != expected.finite || !same(got.result.threshold, expected.threshold)
            ? "result"
        : !wire_.equal()                ? "a pair"
        : !after.equal() || !in.equal() ? "residual"
        : !is_next(known, got.track)    ? "track"
                                        : nullptr;
    return what == nullptr
               ? ""
               : std::string(what) + " differs in step " + std::to_string(steps_) + " of " +
                     name_of(job_.mode) + ", " + std::to_string(job_.k) + " of " +
                     std::to_string(job_.count) + ", " + std::to_string(job_.shift) +
                     " on, feedback " + std::to_string(static_cast<int>(job_.feedback));
  }
  /// After the last step: of the CPU, and of the kernels, which may fall back where the other did
  /// not.
  const ThresholdTrack& track() const { return track_; }
  ThresholdTrack track_of_kernels() { return state_.read().front().track; }
  bool finite() const { return finite_; }

 private:
  static SelectState state_of(const ThresholdTrack& track) {
    SelectState state = {};
    state.track = track;
    return state;
  }
  /// Whether the kernels' track, which was `before`, predicts what the CPU's does, and has not
  /// moved in a step that selected nothing.
  bool is_next(const ThresholdTrack& before, const ThresholdTrack& after) const {
    return job_.mode != SelectMode::kTracked ||
           (same(track_.predicted, after.predicted) &&
            (finite_ || (before.hits == after.hits && before.fallbacks == after.fallbacks)));
  }
  GpuRig& rig_;
  const SelectionCase job_;
  ThresholdTrack track_;
  Mirrored<float> residuals_[2];
  Mirrored<float> wire_;  ///< the bits of indices are those of subnormal floats
  Mirrored<SelectState> state_;
  Mirrored<unsigned char> workspace_;
  SelectScratch scratch_;
  std::uint32_t steps_ = 0;
  bool finite_ = true;
};

/// Adds up the pairs of three ranks, k of so many elements each, one rank after the other. What
/// differs from what the CPU adds, or "".
template <class Adder>
std::string check_sum_of_pairs(GpuRig& rig, const Adder& adder, std::size_t count, std::size_t k) {
  Mirrored<float> out(rig, std::vector<float>(count, 0.7F), 1);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const std::vector<float> in = elements_of(Shape::kLayers, count, rank);
    Mirrored<float> wire(rig, std::vector<float>(2 * k));
    ThresholdTrack track;
    SelectScratch scratch;
    select_largest(
        wire.host(), in.data(), nullptr, count, k, 1.0F, SelectMode::kExact, rank, track, scratch);
    wire.write();
    adder.add(rig.stream(), out.device(), wire.device(), k, count);
    scatter_add(out.host(), wire.host(), k, count, 1.0F);
  }
  return out.equal() ? "" : "the sum of " + std::to_string(k) + " of " + std::to_string(count);
}

}  // namespace aiacc
