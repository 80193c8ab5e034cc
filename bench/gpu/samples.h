#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/gpu_rig.h"

namespace aiacc {

/// Microseconds of one call, by sample; calls follow one another without a gap.
inline std::vector<double> measure(GpuRig& rig, const std::function<void()>& call) {
  constexpr int kSamples = 20;
  constexpr int kCallsPerSample = 20;
  std::vector<double> samples;
  for (int sample = -3; sample < kSamples; ++sample) {
    rig.finish();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCallsPerSample; ++i) {
      call();
    }
    rig.finish();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (sample >= 0) {
      samples.push_back(took.count() / kCallsPerSample);
    }
  }
  return samples;
}

/// A row of a list in JSON; `more` are further fields.
inline void print_row(const char* work,
                      std::size_t read,
                      std::size_t written,
                      const std::vector<double>& samples,
                      const std::string& more = "") {
  static bool first = true;
  std::printf("%s\n  {\"work\": \"%s\", \"bytes_read\": %zu, \"bytes_written\": %zu, %s\"us\": [",
              first ? "" : ",",
              work,
              read,
              written,
              more.empty() ? "" : (more + ", ").c_str());
  first = false;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::printf("%s%.3f", i == 0 ? "" : ", ", samples[i]);
  }
  std::printf("]}");
}

}  // namespace aiacc
