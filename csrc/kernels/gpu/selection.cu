// Selects the largest elements; a device image of its own (device_image.h).

#include "csrc/kernels/gpu/selection_body.h"

namespace aiacc {

// The scan is a kernel of its own, and so has the registers to read ahead.

extern "C" __global__ void __launch_bounds__(kSelectThreads, 3)
    aiacc_select_foresee(const __grid_constant__ SelectPlan plan) {
  DeviceGrid<SelectThread, SelectShared, kSelectThreads> grid(plan.state->arrived);
  begin_selection(grid, plan);
}

extern "C" __global__ void __launch_bounds__(kSelectThreads, 3)
    aiacc_select_scan(const __grid_constant__ SelectPlan plan) {
  OnePhaseGrid<SelectThread, SelectShared, kSelectThreads> grid;
  scan_for_candidates(grid, plan);
}

extern "C" __global__ void __launch_bounds__(kSelectThreads, 3)
    aiacc_select_finish(const __grid_constant__ SelectPlan plan) {
  DeviceGrid<SelectThread, SelectShared, kSelectThreads> grid(plan.state->arrived);
  finish_selection(grid, plan);
}

}  // namespace aiacc
