#include "csrc/kernels/selection/candidates.h"

#include <algorithm>

#include "csrc/kernels/selection/radix.h"

namespace aiacc {

Candidates::Candidates(const Source& source, std::size_t k, SelectScratch& scratch)
    : source_(source), k_(k), scratch_(scratch) {
  scratch_.values.resize(std::max(scratch_.values.size(), room() + kSlack));
  scratch_.indices.resize(scratch_.values.size());
}

Candidates::Found Candidates::find(std::uint32_t low) {
  const std::size_t most = room();
  Found found;
  size_ = 0;
  found.largest = source_.for_each_block([&](const float* block, std::size_t n, std::size_t at) {
    if (found.scan == Scan::kTooMany) {
      return;  // read on for what is not finite
    }
    const std::size_t more = source_.level().collect(scratch_.values.data() + size_,
                                                     scratch_.indices.data() + size_,
                                                     block,
                                                     n,
                                                     low,
                                                     static_cast<std::uint32_t>(at));
    size_ += more;
    found.seen += more;
    if (size_ > most) {
      low = thin();
      if (size_ > k_ + (most - k_) / 2) {
        found.scan = Scan::kTooMany;
      }
    }
  });
  if (size_ < k_) {
    found.scan = Scan::kTooFew;
  }
  return found;
}

Bracket Candidates::bracket() const {
  const Source candidates(source_.level(), scratch_.values.data(), nullptr, size_, 1.0F);
  return radix_bracket(candidates, radix_start(candidates), k_);
}

std::uint32_t Candidates::thin() {
  const std::uint32_t low = magnitude_bits(bracket().low);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    scratch_.values[kept] = scratch_.values[i];
    scratch_.indices[kept] = scratch_.indices[i];
    kept += static_cast<std::size_t>(magnitude_bits(scratch_.values[i]) >= low);
  }
  size_ = kept;
  return low;
}

}  // namespace aiacc
