#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/kernels/select.h"
#include "csrc/kernels/selection/source.h"
#include "csrc/kernels/selection/threshold_track.h"

namespace aiacc {

/// Elements among which the k largest are, found in one pass, in the order of their indices.
class Candidates {
 public:
  /// What a kernel may write beyond the pairs that it found.
  static constexpr std::size_t kSlack = Source::kBlock + 16;

  struct Found {
    Scan scan = Scan::kHit;
    std::size_t seen = 0;       ///< how many reached the threshold of their time
    std::uint32_t largest = 0;  ///< bits of the largest magnitude of the source
  };

  /// Uses the memory of `scratch`, and makes it large enough.
  Candidates(const Source& source, std::size_t k, SelectScratch& scratch);

  /// One pass that keeps what reaches `low`, bits without sign. Where this gets too much, the k-th
  /// largest so far becomes the threshold, for the k-th largest of all cannot be less. Bounded for
  /// any order of the elements: each thinning frees half of what is not for the k, or is the last.
  Found find(std::uint32_t low);

  /// The bracket of the k-th largest of them; after a hit this is the one of the source.
  Bracket bracket() const;

  std::size_t size() const { return size_; }
  float value(std::size_t i) const { return scratch_.values[i]; }
  std::uint32_t index(std::size_t i) const { return scratch_.indices[i]; }

 private:
  std::size_t room() const { return candidate_room(source_.count(), k_); }
  /// Keeps the k largest and their equals. Returns the bits of the least.
  std::uint32_t thin();

  const Source& source_;
  std::size_t k_;
  SelectScratch& scratch_;
  std::size_t size_ = 0;
};

}  // namespace aiacc
