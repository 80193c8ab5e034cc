#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/kernels/select.h"
#include "csrc/kernels/selection/threshold_track.h"

namespace aiacc {

/// Threads of a block of the kernel that selects.
inline constexpr std::uint32_t kSelectThreads = 256;
/// Elements that a warp looks at together, 16 for each thread.
inline constexpr std::uint32_t kSelectStrip = 512;
/// Blocks of a launch at most.
inline constexpr std::uint32_t kSelectMostBlocks = 512;
/// Candidates for which a warp takes room at a time, 4 for each thread.
inline constexpr std::uint32_t kSelectChunk = 128;
/// Elements from which on a sample foretells the threshold, a row of 128 among so many.
inline constexpr std::uint32_t kSelectLeastSampled = 1 << 18;
inline constexpr std::uint32_t kSelectSampled = 64;
inline constexpr std::uint32_t kSelectBins = 4096;

/// What is known of a warp's share of the elements.
struct SelectShare {
  std::uint32_t first;  ///< chunk of its candidates
  std::uint32_t found;  ///< how many it has
  std::uint64_t pairs;  ///< chosen without question, and 2^32 for each tie
};

/// Where the k-th largest magnitude lies: `inside` elements have bits from `base` on, below
/// base + 2^shift; `above` have more.
struct SelectRange {
  std::uint32_t base;
  int shift;
  std::uint32_t above;
  std::uint32_t inside;
};

/// Ways to know what candidates have to reach, the cheapest first.
enum class Foresight : std::uint32_t { kTrack, kSample, kPasses };

/// State of a selection, in memory of the device. All zeros, but for the track, before the first
/// step; it belongs to one buffer, whose steps follow one another.
struct SelectState {
  ThresholdTrack track;
  Selection result;  ///< of the last step

  // Counters of a phase, and of the grid.
  std::uint32_t arrived;
  std::uint32_t candidates;
  std::uint32_t chunks;   ///< taken for them
  std::uint32_t lacking;  ///< warps that found none
  std::uint32_t largest;
  std::uint32_t first_bad;

  // What decides about the course of a step.
  std::uint32_t low;    ///< candidates reach it
  Foresight way;        ///< it comes from
  std::uint32_t scans;  ///< it says something: there is a scan for candidates
  SelectRange scanned;  ///< which counts there
  std::uint32_t seen;
  std::uint32_t finite;
  std::uint32_t collected;  ///< all that reach the range are among the candidates
  Scan scan;
  SelectRange range;

  // Which part of the ties is taken.
  std::uint32_t before_run;
  std::uint32_t run;
};

/// The only argument of the kernels. select.h says what is selected, and every bit of it; MSTopK as
/// published (kReference) is the CPU's alone.
struct SelectPlan {
  const float* in;
  const float* residual;   ///< or null
  float* residual_out;     ///< may be `residual`
  float* values;           ///< of the wire
  std::uint32_t* indices;  ///< of the wire
  std::uint32_t count;
  std::uint32_t k;
  float factor;
  SelectMode mode;
  std::uint64_t seed;
  std::uint32_t strips;
  std::uint32_t room;        ///< candidates, at most
  std::uint32_t chunks;      ///< for them, since each warp may take one too many
  std::uint32_t is_aligned;  ///< for accesses of 16 bytes
  SelectState* state;
  std::uint32_t* bins;  ///< kSelectBins
  float* candidate_values;
  std::uint32_t* candidate_indices;
  std::uint32_t* next;      ///< the chunk after each
  SelectShare* share;       ///< of each warp
  std::uint64_t* of_block;  ///< the pairs of its warps
};

/// Bytes of memory that a selection of so many needs beside its state. Pure.
std::size_t select_workspace_bytes(std::size_t count, std::size_t k);

/// The argument of a launch. `workspace` has select_workspace_bytes(count, k), at a multiple of 16;
/// `wire` pairs_bytes(k). Pure. Throws Error(kInvalidArgument) unless 0 < k <= count < 2^32 and
/// all addresses are multiples of 4.
SelectPlan plan_selection(void* wire,
                          const float* in,
                          const float* residual,
                          float* residual_out,
                          std::size_t count,
                          std::size_t k,
                          float factor,
                          SelectMode mode,
                          std::uint64_t seed,
                          SelectState* state,
                          void* workspace);

/// The kernels of a selection, in their order, and their twins on the host: what `blocks` blocks
/// do, in either order. Nothing comes back to the host between them.
struct SelectKernel {
  const char* name;  ///< in the device image
  bool together;     ///< its blocks wait for one another
  void (*run)(const SelectPlan& plan, std::uint32_t blocks, bool backwards);
};
const std::vector<SelectKernel>& select_kernels();

/// Blocks of all three where so many run at a time. Pure.
std::uint32_t select_blocks(const SelectPlan& plan, std::uint32_t resident);

/// The twins one after another, as if `resident` blocks ran at a time.
void select_on_host(const SelectPlan& plan, std::uint32_t resident, bool backwards);

}  // namespace aiacc
