#include "csrc/kernels/select.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
namespace aiacc {
std::size_t pairs_bytes(std::size_t k) { return 8 * k; }
std::size_t selected_count(std::size_t count, double density) {
  return count == 0 ? 0 : std::min<std::size_t>(count, std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(density * static_cast<double>(count)))));
}
Selection select_largest(void* wire, const float* in, float* residual, std::size_t count, std::size_t k, float factor, SelectMode, std::uint64_t, ThresholdTrack&, SelectScratch& s) {
  std::vector<float> t(count);
  for (std::size_t i = 0; i < count; ++i) t[i] = factor * in[i] + (residual ? residual[i] : 0.0F);
  s.order.resize(count);
  std::iota(s.order.begin(), s.order.end(), 0U);
  std::nth_element(s.order.begin(), s.order.begin() + static_cast<std::ptrdiff_t>(k), s.order.end(), [&](auto a, auto b) { return std::fabs(t[a]) > std::fabs(t[b]); });
  auto* v = static_cast<char*>(wire);
  for (std::size_t j = 0; j < k; ++j) {
    std::memcpy(v + 4 * j, &t[s.order[j]], 4);
    std::memcpy(v + 4 * (k + j), &s.order[j], 4);
    t[s.order[j]] = 0;
  }
  if (residual) std::copy(t.begin(), t.end(), residual);
  return {};
}
void scatter_add(float* out, const void* wire, std::size_t k, std::size_t, float factor) {
  const auto* v = static_cast<const char*>(wire);
  for (std::size_t j = 0; j < k; ++j) {
    float x; std::uint32_t i;
    std::memcpy(&x, v + 4 * j, 4); std::memcpy(&i, v + 4 * (k + j), 4);
    out[i] += factor * x;
  }
}
}  // namespace aiacc
