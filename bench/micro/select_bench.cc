// What it costs to select the largest elements of a buffer, on one thread: the k = density * count
// largest of Gaussian gradients, for every mode, with error feedback and without; memcpy of the
// buffer beside it. Prints one JSON object.
//
//   select_bench [count [density [steps]]]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/select.h"
#include "csrc/kernels/vector/level.h"

namespace {

using SteadyClock = std::chrono::steady_clock;

double milliseconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

struct Row {
  const char* mode;
  bool residual;
  double median_ms;
  std::uint64_t fallbacks;
};

/// A step uses the gradients in turn. With a residual the threshold rises in the first steps, until
/// most of it was sent once: the median is of the second half, the fallbacks are of all.
Row measure(aiacc::SelectMode mode,
            const char* name,
            bool with_residual,
            const std::vector<std::vector<float>>& gradients,
            std::size_t k,
            int steps) {
  const std::size_t count = gradients.front().size();
  std::vector<unsigned char> wire(aiacc::pairs_bytes(k));
  std::vector<float> residual(with_residual ? count : 0);
  aiacc::ThresholdTrack track;
  aiacc::SelectScratch scratch;
  std::vector<double> samples;
  for (int step = 0; step < steps; ++step) {
    const auto start = SteadyClock::now();
    const aiacc::Selection selection =
        aiacc::select_largest(wire.data(),
                              gradients[static_cast<std::size_t>(step) % gradients.size()].data(),
                              with_residual ? residual.data() : nullptr,
                              count,
                              k,
                              0.5F,
                              mode,
                              7,
                              track,
                              scratch);
    if (step >= steps / 2) {
      samples.push_back(milliseconds_since(start));
    }
    float first = 0.0F;
    std::memcpy(&first, wire.data(), sizeof first);
    if (!selection.finite || std::abs(first) < selection.threshold) {
      std::fprintf(stderr, "wrong result\n");
      std::exit(1);
    }
  }
  return {name, with_residual, median(samples), track.fallbacks};
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 25'000'000;
  const double density = argc > 2 ? std::atof(argv[2]) : 0.01;
  const int steps = argc > 3 ? std::max(2, std::atoi(argv[3])) : 20;
  const std::size_t k = aiacc::selected_count(count, density);
  std::vector<std::vector<float>> gradients(4, std::vector<float>(count));
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (std::vector<float>& gradient : gradients) {
    std::generate(gradient.begin(), gradient.end(), [&] { return normal(random); });
  }
  std::vector<Row> rows;
  for (const bool residual : {false, true}) {
    rows.push_back(measure(aiacc::SelectMode::kTracked, "tracked", residual, gradients, k, steps));
    rows.push_back(
        measure(aiacc::SelectMode::kExact, "exact", residual, gradients, k, std::min(steps, 20)));
    rows.push_back(measure(
        aiacc::SelectMode::kReference, "reference", residual, gradients, k, std::min(steps, 6)));
  }
  std::vector<float> copy(count);
  std::vector<double> copies;
  for (int step = 0; step < steps; ++step) {
    const auto start = SteadyClock::now();
    std::memcpy(copy.data(), gradients[static_cast<std::size_t>(step) % 4].data(), count * 4);
    copies.push_back(milliseconds_since(start));
    gradients[0][0] += copy[count / 2];  // somebody needs the copy
  }
  const auto bytes = static_cast<double>(count * sizeof(float));
  std::printf("{\"count\": %zu, \"k\": %zu, \"steps\": %d, \"level\": \"%s\", \"memcpy_ms\": %.3f",
              count,
              k,
              steps,
              aiacc::runnable_vector_levels().front()->name,
              median(copies));
  std::printf(", \"memcpy_read_gb_s\": %.2f, \"rows\": [", bytes / median(copies) / 1e6);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    // The least a step must move: the input, and with a residual this both ways.
    const double moved = rows[i].residual ? 3 * bytes : bytes;
    std::printf(
        "%s{\"mode\": \"%s\", \"residual\": %s, \"median_ms\": %.3f, \"gb_s\": %.2f"
        ", \"fallbacks\": %llu}",
        i == 0 ? "" : ", ",
        rows[i].mode,
        rows[i].residual ? "true" : "false",
        rows[i].median_ms,
        moved / rows[i].median_ms / 1e6,
        static_cast<unsigned long long>(rows[i].fallbacks));
  }
  std::printf("]}\n");
  return 0;
}
