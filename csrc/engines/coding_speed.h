#pragma once

#include <cstddef>

#include "csrc/engines/coding.h"

namespace aiacc {

/// How long one rank takes for a coded all-reduce with residuals by itself, which sends nothing:
/// the best of a few times, after one that does not count. Blocks for all of them.
double coding_seconds(const Coding& coding, std::size_t elements);

}  // namespace aiacc
