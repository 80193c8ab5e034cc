#pragma once

#include <vector>

namespace aiacc {

/// How one message goes from rank 0 to all in log2(size) steps: whoever has it passes it on, to at
/// most log2(size) others. A binomial tree. Pure.
///
/// The rank that `rank`, which is not 0, has it from: its number without the highest bit.
int spreading_parent(int rank);
/// The ranks that have it from `rank`, those with most others behind them first.
std::vector<int> spreading_children(int rank, int size);

}  // namespace aiacc
