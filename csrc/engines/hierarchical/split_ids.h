#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "csrc/base/error.h"

namespace aiacc {

/// The split ids that one hierarchical engine of a job uses: one for the flat engine, one for every
/// host and one for every column. Pure.
class SplitIds {
 public:
  /// The ids of the engine of all `ranks` of the job begin with `base`.
  SplitIds(std::size_t ranks, std::uint32_t base)
      : first_(base), count_(static_cast<std::uint32_t>(2 * ranks + 1)), base_(base) {}

  /// The ids of a part; all parts of one job have other numbers `split_id`.
  SplitIds part(std::uint32_t split_id) const {
    const std::uint32_t numbers = std::numeric_limits<std::uint32_t>::max() - base_;
    AIACC_CHECK(split_id < numbers / count_ - 2);
    SplitIds ids = *this;
    ids.first_ = base_ + (split_id + 1) * count_;
    return ids;
  }

  std::uint32_t flat() const { return first_; }
  std::uint32_t host(int number) const { return first_ + 1 + static_cast<std::uint32_t>(number); }
  std::uint32_t column(int number) const { return host(number) + count_ / 2; }

 private:
  std::uint32_t first_;
  std::uint32_t count_;
  std::uint32_t base_;
};

}  // namespace aiacc
