#pragma once

#include <cstddef>
#include <vector>

#include "csrc/core/execution/host_unit.h"
#include "csrc/engines/staged/device_mover.h"

namespace aiacc {

// Units of tensors on a GPU as work in host memory: what is copied there, which operation of the
// engine for host memory follows, what is copied back.
//
// A reduction, and a broadcast, is given to that engine as a whole, in the very form in which
// tensors in host memory are: so the results are the same to the last bit. Residuals of a coded
// all-reduce, which are on the GPU, too, lie behind the tensors there. All-gather and all-to-all
// only move bytes, and pass in several steps (csrc/planning/staging_chunks.h).

/// What of a unit passes through host memory at a time. Offsets are those in that memory.
struct StagedStep {
  std::vector<StagedCopy> in;
  std::vector<StagedCopy> out;
  std::vector<SliceMemory> slices;  ///< on the GPU; none of an all-gather or all-to-all
  std::size_t residuals = 0;        ///< where they begin; 0: there are none
  std::size_t output = 0;           ///< where results begin; in place if the operation can work so
  std::size_t bytes = 0;            ///< of host memory
  PerRank sent;                     ///< bytes by member, of an all-gather or all-to-all
  PerRank received;
};

/// How many steps a unit takes: at least 1.
std::size_t staged_steps(const Unit& unit);
/// Bytes that an all-gather or all-to-all gives in all, to TensorBuffers::gathered_on_gpu; 0 for
/// other operations.
std::size_t gathered_bytes(const Unit& unit);
/// `out` counts once `gathered_on_gpu` is there.
StagedStep staged_step(const Unit& unit, std::size_t index);
/// Runs the engine on `host`, aligned to 256, which the copies in have filled. Blocks; throws what
/// the engine throws.
void run_step(
    const Unit& unit, const StagedStep& step, int lane, std::byte* host, PackBuffer& buffer);

/// Whether a unit can as well go straight through the slots of an engine
/// (Engine::all_reduce_moved), and is large enough: an all-reduce, but not Adasum, whose elements
/// travel as they are and are not looked at. Ranks need not agree on it.
bool fits_slots(const Unit& unit);

}  // namespace aiacc
