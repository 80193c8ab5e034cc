#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/core/execution/host_unit.h"
#include "csrc/engines/staged/device_mover.h"

namespace aiacc {

/// One unit of tensors on a GPU as work in host memory: what is copied there, which operation of
/// the engine for host memory follows, what is copied back.
///
/// A reduction, and a broadcast, is given to that engine as a whole, in the very form in which
/// tensors in host memory are: so the results are the same to the last bit. Residuals of a coded
/// all-reduce, which are on the GPU, too, lie behind the tensors there. All-gather and
/// all-to-all only move bytes, and pass in several steps (csrc/planning/staging_chunks.h).
///
/// Threads: one at a time. Holds references to the unit, which outlives it.
class StagedUnit {
 public:
  explicit StagedUnit(const Unit& unit);

  std::size_t steps() const { return steps_; }
  /// Bytes that an all-gather or all-to-all gives in all; 0 for other operations.
  std::size_t gathered_bytes() const;

  /// Host memory that a step needs, aligned to 256.
  std::size_t host_bytes(std::size_t step) const;
  /// Places are those in the host memory of the step.
  std::vector<StagedCopy> copies_in(std::size_t step) const;
  /// `gathered`: device memory for the output of an all-gather or all-to-all.
  std::vector<StagedCopy> copies_out(std::size_t step, std::uintptr_t gathered) const;
  /// Runs the engine on `host`, which the copies in have filled. Blocks; throws what the engine
  /// throws.
  void run(std::size_t step, int lane, std::byte* host, PackBuffer& buffer) const;

  /// Whether the unit can as well go straight through the slots of an engine
  /// (Engine::all_reduce_moved), and is large enough: an all-reduce, but not Adasum, whose elements
  /// travel as they are and are not looked at. Ranks need not agree on it.
  bool fits_slots() const;
  /// Runs such a unit: copies in, engine, copies out. Blocks; throws what engine and mover throw.
  void run_moved(int lane, DeviceMover& mover) const;

 private:
  bool gathers() const { return kind_ == OpKind::kAllgather || kind_ == OpKind::kAlltoall; }
  PerRank sizes(const PerRank& parts, std::size_t step) const;
  std::size_t output_offset(std::size_t step) const;
  std::vector<StagedCopy> copies_of(const PerRank& parts,
                                    std::size_t step,
                                    std::uintptr_t device,
                                    std::size_t host_offset) const;

  const Unit& unit_;
  const OpKind kind_;
  std::vector<SliceMemory> slices_;  ///< on the GPU; none of an all-gather or all-to-all
  std::size_t residual_offset_ = 0;  ///< where residuals begin in host memory; 0: there are none
  std::size_t steps_ = 1;
  PerRank sent_;      ///< bytes of parts: all-gather: this rank's; all-to-all: for each member
  PerRank received_;  ///< from each member
};

}  // namespace aiacc
