// Selects the largest elements; a device image of its own (device_image.h).

#include "csrc/kernels/gpu/selection_body.h"

namespace aiacc {

extern "C" __global__ void __launch_bounds__(kSelectThreads, 2)
    aiacc_select(const __grid_constant__ SelectPlan plan) {
  DeviceGrid<SelectThread, SelectShared, kSelectThreads> grid(plan.state->arrived);
  select_all(grid, plan);
}

}  // namespace aiacc
