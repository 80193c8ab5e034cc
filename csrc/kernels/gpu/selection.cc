#include "csrc/kernels/gpu/selection.h"

#include <algorithm>
#include <string>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/selection_body.h"

namespace aiacc {
namespace {

/// Divides memory, each part at a multiple of 16.
class Layout {
 public:
  explicit Layout(void* memory) : memory_(static_cast<unsigned char*>(memory)) {}
  template <class T>
  T* take(std::size_t count) {
    T* part = reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (count * sizeof(T) + 15) / 16 * 16;
    return part;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  unsigned char* memory_;
  std::size_t bytes_ = 0;
};

std::size_t lay_out(SelectPlan& plan, std::size_t count, std::size_t k, void* workspace) {
  Layout layout(workspace);
  const std::size_t room = candidate_room(count, k);
  const std::size_t strips = (count + kSelectStrip - 1) / kSelectStrip;
  const std::size_t blocks =
      std::min<std::size_t>((strips + kWarps - 1) / kWarps, kSelectMostBlocks);
  const std::size_t chunks = room / kSelectChunk + blocks * kWarps;
  plan.strips = static_cast<std::uint32_t>(strips);
  plan.room = static_cast<std::uint32_t>(room);
  plan.chunks = static_cast<std::uint32_t>(chunks);
  plan.bins = layout.take<std::uint32_t>(kSelectBins);
  plan.share = layout.take<SelectShare>(blocks * kWarps);
  plan.of_block = layout.take<std::uint64_t>(blocks);
  plan.next = layout.take<std::uint32_t>(chunks);
  plan.candidate_values = layout.take<float>(chunks * kSelectChunk);
  plan.candidate_indices = layout.take<std::uint32_t>(chunks * kSelectChunk);
  return layout.bytes();
}

bool aligned(const void* address, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

}  // namespace

std::size_t select_workspace_bytes(std::size_t count, std::size_t k) {
  SelectPlan plan = {};
  return lay_out(plan, count, k, nullptr);
}

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
                          void* workspace) {
  if (k == 0 || k > count || count > UINT32_MAX) {
    throw Error(Code::kInvalidArgument,
                "[kernels] " + std::to_string(k) + " of " + std::to_string(count) +
                    " elements to select (expected at least one, at most all, of less than 2^32); "
                    "choose another density or split the tensor");
  }
  if (!aligned(wire, 4) || !aligned(in, 4) || !aligned(residual, 4) || !aligned(residual_out, 4)) {
    throw Error(Code::kInvalidArgument,
                "[kernels] a tensor, residual or wire to select from is at an address that is no "
                "multiple of 4; copy it into memory of its own");
  }
  AIACC_CHECK((residual == nullptr) == (residual_out == nullptr));
  AIACC_CHECK(mode != SelectMode::kReference);
  SelectPlan plan = {};
  plan.in = in;
  plan.residual = residual;
  plan.residual_out = residual_out;
  plan.values = static_cast<float*>(wire);
  plan.indices = reinterpret_cast<std::uint32_t*>(plan.values + k);
  plan.count = static_cast<std::uint32_t>(count);
  plan.k = static_cast<std::uint32_t>(k);
  plan.factor = factor;
  plan.mode = mode;
  plan.seed = seed;
  plan.is_aligned = aligned(in, 16) && aligned(residual, 16) && aligned(residual_out, 16) ? 1 : 0;
  plan.state = state;
  lay_out(plan, count, k, workspace);
  return plan;
}

std::uint32_t select_blocks(const SelectPlan& plan, std::uint32_t resident) {
  return std::min({(plan.strips + kWarps - 1) / kWarps, resident, kSelectMostBlocks});
}

const std::vector<SelectKernel>& select_kernels() {
  using Grid = HostGrid<SelectThread, SelectShared, kSelectThreads>;
  static const std::vector<SelectKernel> kernels = {
      {"aiacc_select_foresee",
       true,
       [](const SelectPlan& plan, std::uint32_t blocks, bool backwards) {
         Grid grid(blocks, backwards);
         begin_selection(grid, plan);
       }},
      {"aiacc_select_scan",
       false,
       [](const SelectPlan& plan, std::uint32_t blocks, bool backwards) {
         Grid grid(blocks, backwards);
         scan_for_candidates(grid, plan);
       }},
      {"aiacc_select_finish",
       true,
       [](const SelectPlan& plan, std::uint32_t blocks, bool backwards) {
         Grid grid(blocks, backwards);
         finish_selection(grid, plan);
       }},
  };
  return kernels;
}

void select_on_host(const SelectPlan& plan, std::uint32_t resident, bool backwards) {
  for (const SelectKernel& kernel : select_kernels()) {
    kernel.run(plan, select_blocks(plan, resident), backwards);
  }
}

}  // namespace aiacc
