#include "csrc/control/tcp/doubling_plan.h"

#include <algorithm>

namespace aiacc {

DoublingPlan DoublingPlan::of(int rank, int size) {
  int power = 1;
  while (power * 2 <= size) {
    power *= 2;
  }
  DoublingPlan plan;
  if (rank >= power) {
    plan.proxy = rank - power;
    return plan;
  }
  for (int bit = 1; bit < power; bit *= 2) {
    const int partner = rank ^ bit;
    const int first = partner & ~(bit - 1);
    const int last = first + bit - 1;
    plan.stages.push_back(partner);
    plan.blocks.push_back({first, last, first + power, std::min(last + power, size - 1)});
  }
  plan.extra = rank + power < size ? rank + power : -1;
  return plan;
}

}  // namespace aiacc
