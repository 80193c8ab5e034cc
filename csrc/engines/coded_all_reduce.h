#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "csrc/engines/coding.h"
#include "csrc/kernels/select.h"

namespace aiacc {

class Engine;

/// What coded all-reduces of one lane need while they work, kept for its memory.
struct CodedMemory {
  std::vector<std::byte> sent;
  std::vector<std::byte> received;
  std::vector<std::byte> shard;
  SelectScratch selection;
  /// By where the residual is. What they predict makes a selection faster, not another one.
  std::unordered_map<const float*, ThresholdTrack> tracks;
};

/// One all-reduce of float32 that travel coded.
struct CodedReduce {
  float* values;    ///< in place: what this rank gives, then the sum
  float* residual;  ///< error feedback of as many elements, see coded_all_reduce; null: none
  std::size_t count;
  Coding coding;
  std::uint64_t seed;  ///< of what is left to chance; another one for every step, unit and rank
  /// The same on all ranks; another one for every step and unit.
  std::uint64_t common_seed = 0;
};

/// The sum over the ranks of an engine, of which this is number `rank` of `ranks`. Bit-identical
/// on all ranks. Collective; blocks. Throws what the engine throws. In the way of the engine where
/// it has one of its own; else as follows.
///
/// In blocks: every rank encodes its values once, sends each rank its shard, adds up what comes for
/// its own in float32, in the order of ranks, and encodes the sum, which all get. Largest: every
/// rank sends the largest of its values and where they are, and all add up in the order of ranks;
/// where the pairs of all would be longer than twice the values, what a dense all-reduce sends,
/// they are added up by one. Random: all choose the same places by chance, and add up what is
/// there, by an all-reduce.
///
/// With a residual, a rank gives values + residual and keeps there what the code has lost of it;
/// the owner of a shard also what the sum has lost. So sums and residuals together lose nothing
/// (error feedback: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019). Of what is not
/// finite no residual is kept: it is NaN or infinite in the sum. Of the largest only the first such
/// value of a rank is: the rank sends zeros beside it (select.h).
void coded_all_reduce(
    Engine& engine, int lane, const CodedReduce& reduce, int rank, int ranks, CodedMemory& memory);

}  // namespace aiacc
