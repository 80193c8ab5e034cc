# The kernels. The vector kernels are one template, compiled once per instruction set and chosen at
# run time.
# Sets AIACC_KERNEL_SOURCES.

set(AIACC_KERNEL_SOURCES
  csrc/kernels/adasum.cc
  csrc/kernels/batch_copier.cc
  csrc/kernels/batch_copy.cc
  csrc/kernels/check_finite.cc
  csrc/kernels/gpu/block_code.cc
  csrc/kernels/gpu/block_coder.cc
  csrc/kernels/gpu/device_module.cc
  csrc/kernels/gpu/device_selector.cc
  csrc/kernels/gpu/optim/device_factors.cc
  csrc/kernels/gpu/optim/device_lamb.cc
  csrc/kernels/gpu/optim/device_lars.cc
  csrc/kernels/gpu/optim/factor_packing.cc
  csrc/kernels/gpu/optim/lamb_update.cc
  csrc/kernels/gpu/optim/lars_update.cc
  csrc/kernels/gpu/optim/tensor_chunks.cc
  csrc/kernels/gpu/pair_adder.cc
  csrc/kernels/gpu/selection.cc
  csrc/kernels/half.cc
  csrc/kernels/lars.cc
  csrc/kernels/narrow.cc
  csrc/kernels/quantise.cc
  csrc/kernels/reduce.cc
  csrc/kernels/scale.cc
  csrc/kernels/select.cc
  csrc/kernels/selection/candidates.cc
  csrc/kernels/selection/mstopk.cc
  csrc/kernels/selection/radix.cc
  csrc/kernels/selection/random_sample.cc
  csrc/kernels/selection/selector.cc
  csrc/kernels/selection/threshold_track.cc
  csrc/kernels/vector/baseline.cc
)
# Contraction to fused multiply-add would make the levels differ; without the assumption that
# comparisons trap, Min and Max become vector code. -O3 also where the build type says less.
set(AIACC_KERNEL_OPTIONS -O3 -ffp-contract=off -fno-trapping-math)
set_source_files_properties(
  csrc/kernels/adasum.cc csrc/kernels/gpu/block_code.cc
  csrc/kernels/gpu/optim/factor_packing.cc csrc/kernels/gpu/optim/lamb_update.cc
  csrc/kernels/gpu/optim/lars_update.cc csrc/kernels/gpu/selection.cc
  csrc/kernels/vector/baseline.cc PROPERTIES
  COMPILE_OPTIONS "${AIACC_KERNEL_OPTIONS}" SKIP_PRECOMPILE_HEADERS ON)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND AIACC_KERNEL_SOURCES
    csrc/kernels/vector/avx2.cc
    csrc/kernels/vector/avx512.cc
    csrc/kernels/vector/level_x86.cc
  )
  set_source_files_properties(csrc/kernels/vector/avx2.cc PROPERTIES
    COMPILE_OPTIONS "${AIACC_KERNEL_OPTIONS};-mavx2;-mf16c" SKIP_PRECOMPILE_HEADERS ON)
  # GCC 12 takes the undefined operand of its own intrinsics for a mistake (its bug 105593).
  set_source_files_properties(csrc/kernels/vector/avx512.cc PROPERTIES
    COMPILE_OPTIONS
    "${AIACC_KERNEL_OPTIONS};-Wno-maybe-uninitialized;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512"
    SKIP_PRECOMPILE_HEADERS ON)
else()
  list(APPEND AIACC_KERNEL_SOURCES csrc/kernels/vector/level_portable.cc)
endif()
