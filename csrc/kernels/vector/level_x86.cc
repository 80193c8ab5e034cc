#include <cpuid.h>

#include "csrc/kernels/vector/level.h"

namespace aiacc {
namespace {

bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

std::vector<const VectorLevel*> detect() {
  std::vector<const VectorLevel*> levels;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    levels.push_back(&kAvx512Level);
  }
  if (__builtin_cpu_supports("avx2") && has_f16c()) {
    levels.push_back(&kAvx2Level);
  }
  levels.push_back(&kBaselineLevel);
  return levels;
}

}  // namespace

const std::vector<const VectorLevel*>& runnable_vector_levels() {
  static const std::vector<const VectorLevel*> levels = detect();
  return levels;
}

}  // namespace aiacc
