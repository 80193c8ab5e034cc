#include "csrc/engines/coding_speed.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "csrc/base/event.h"
#include "csrc/engines/coded_all_reduce.h"
#include "csrc/engines/local/local_engine.h"

namespace aiacc {

double coding_seconds(const Coding& coding, std::size_t elements) {
  constexpr int kTimes = 3;
  LocalEngine engine{EngineContext{}};
  CodedMemory memory;
  std::vector<float> given(elements);
  std::uint32_t bits = 1;
  for (float& value : given) {
    bits = bits * 1664525 + 1013904223;
    value = static_cast<float>(bits >> 8) / (1 << 23) - 1;
  }
  std::vector<float> values;
  std::vector<float> residual(elements);
  double best = 0;
  for (int i = 0; i <= kTimes; ++i) {
    values = given;
    const auto begun = Clock::now();
    coded_all_reduce(
        engine, 0, {values.data(), residual.data(), elements, coding, 0}, 0, 1, memory);
    const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    best = i <= 1 ? seconds : std::min(best, seconds);
  }
  return best;
}

}  // namespace aiacc
