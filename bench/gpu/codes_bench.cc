// Speed of the kernels of csrc/kernels/gpu on GPU 0, against a copy of the driver. Argument: a
// number of float32 elements. Writes JSON.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/gpu/samples.h"
#include "csrc/kernels/gpu/block_coder.h"
#include "csrc/kernels/gpu/device_selector.h"
#include "csrc/kernels/quantise.h"
#include "tests/gpu/gpu_rig.h"

namespace aiacc {
namespace {

constexpr std::size_t kInputs = 4;        ///< by turns
constexpr std::size_t kShift = 16 << 10;  ///< elements from one input to the next

/// Nearly Gaussian: the sum of four uniform numbers, in layers of different sizes.
std::vector<float> gradients(std::size_t count) {
  std::vector<float> values(count);
  std::uint64_t x = 1;
  for (std::size_t i = 0; i < count; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    const auto part = [&](int at) { return static_cast<float>((x >> at) & 0xffff) / 65536 - 0.5F; };
    const auto layer = static_cast<int>(i * 8 / count);
    values[i] = std::ldexp(part(0) + part(16) + part(32) + part(48), -layer);
  }
  return values;
}

class CodesBench {
 public:
  CodesBench(GpuRig& rig, std::size_t count)
      : rig_(rig),
        count_(count),
        in_(rig, (count + kInputs * kShift) * sizeof(float)),
        out_(rig, count * sizeof(float)),
        residual_(rig, count * sizeof(float)),
        other_residual_(rig, count * sizeof(float)),
        wire_(rig, encoded_bytes(count, {BlockFormat::kInt8, 128})) {
    in_.write(gradients(count + kInputs * kShift).data());
    for (const DeviceMemory* memory : {&out_, &residual_, &other_residual_}) {
      clear(*memory, count * sizeof(float));
    }
  }

  void copies() {
    const std::size_t bytes = count_ * sizeof(float);
    print_row("copy", bytes, bytes, measure(rig_, [&] {
                AIACC_CUDA_CHECK(rig_.driver(),
                                 copy_async,
                                 reinterpret_cast<CudaAddress>(out_.pointer()),
                                 reinterpret_cast<CudaAddress>(next_input()),
                                 bytes,
                                 rig_.stream());
              }));
  }

  void blocks(const std::string& name, const BlockCode& code) {
    const BlockCoder coder(rig_.driver());
    const std::size_t dense = count_ * sizeof(float);
    const std::size_t coded = encoded_bytes(count_, code);
    const auto encode = [&](const char* how, bool keeps, bool stochastic) {
      print_row(("encode " + name + how).c_str(),
                keeps ? 2 * dense : dense,
                keeps ? coded + dense : coded,
                measure(rig_, [&] {
                  coder.encode(rig_.stream(),
                               wire_.pointer(),
                               next_input(),
                               keeps ? residual_.pointer() : nullptr,
                               count_,
                               code,
                               1.0F,
                               {stochastic, 1},
                               0);
                }));
    };
    encode("", false, false);
    encode(", stochastic", false, true);
    encode(", feedback", true, false);
    print_row(("decode " + name).c_str(), coded, dense, measure(rig_, [&] {
                coder.decode(rig_.stream(), out_.pointer(), wire_.pointer(), count_, code, 1.0F);
              }));
    print_row(("decode and add " + name).c_str(), coded + dense, dense, measure(rig_, [&] {
                coder.decode_add(rig_.stream(), out_.pointer(), wire_.pointer(), count_, code);
              }));
  }

  /// `feedback`: none, or a residual that moves, or one in place.
  void selection(const char* how, SelectMode mode, double density, const char* feedback) {
    const DeviceSelector selector(rig_.driver());
    const bool moves = std::string(feedback) == "moves";
    const bool keeps = moves || std::string(feedback) == "in place";
    const std::size_t k = selected_count(count_, density);
    const DeviceMemory pairs(rig_, pairs_bytes(k));
    const DeviceMemory workspace(rig_, select_workspace_bytes(count_, k));
    DeviceMemory state_memory(rig_, sizeof(SelectState));
    clear(state_memory, sizeof(SelectState));
    const DeviceMemory* residuals[2] = {&residual_, moves ? &other_residual_ : &residual_};
    clear(residual_, count_ * sizeof(float));
    std::uint64_t step = 0;
    const std::size_t dense = count_ * sizeof(float);
    const std::vector<double> samples = measure(rig_, [&] {
      ++step;
      const auto at = [&](std::size_t i) {
        return keeps ? static_cast<float*>(residuals[i % 2]->pointer()) : nullptr;
      };
      selector.select(rig_.stream(),
                      plan_selection(pairs.pointer(),
                                     next_input(),
                                     at(step),
                                     at(step + 1),
                                     count_,
                                     k,
                                     1.0F,
                                     mode,
                                     step,
                                     static_cast<SelectState*>(state_memory.pointer()),
                                     workspace.pointer()));
    });
    SelectState state = {};
    state_memory.read(&state);
    const std::string text =
        std::string("select, ") + how + ", " + std::to_string(k) + " pairs, feedback " + feedback;
    const std::string counts = "\"pairs\": " + std::to_string(k) +
                               ", \"hits\": " + std::to_string(state.track.hits) +
                               ", \"fallbacks\": " + std::to_string(state.track.fallbacks);
    print_row(text.c_str(), keeps ? 2 * dense : dense, keeps ? dense : 0, samples, counts);
  }

 private:
  const float* next_input() {
    return static_cast<const float*>(in_.pointer()) + (++turn_ % kInputs) * kShift;
  }
  void clear(const DeviceMemory& memory, std::size_t bytes) {
    AIACC_CUDA_CHECK(rig_.driver(),
                     fill_async,
                     reinterpret_cast<CudaAddress>(memory.pointer()),
                     0,
                     bytes,
                     rig_.stream());
  }

  GpuRig& rig_;
  std::size_t count_;
  DeviceMemory in_;
  DeviceMemory out_;
  DeviceMemory residual_;
  DeviceMemory other_residual_;
  DeviceMemory wire_;
  std::size_t turn_ = 0;
};

int run(std::size_t count) {
  GpuRig rig;
  CodesBench bench(rig, count);
  std::printf("[");
  bench.copies();
  bench.blocks("int8", {BlockFormat::kInt8, 256});
  bench.blocks("int4", {BlockFormat::kInt4, 256});
  bench.blocks("fp8", {BlockFormat::kFloat8E4M3, 256});
  for (const double density : {0.001, 0.01}) {
    bench.selection("tracked", SelectMode::kTracked, density, "none");
    bench.selection("tracked", SelectMode::kTracked, density, "moves");
    bench.selection("tracked", SelectMode::kTracked, density, "in place");
    bench.selection("cold", SelectMode::kExact, density, "none");
    bench.selection("reference", SelectMode::kReference, density, "none");
  }
  bench.copies();
  std::printf("\n]\n");
  return 0;
}

}  // namespace
}  // namespace aiacc

int main(int argc, char** argv) {
  const long count = argc == 2 ? std::atol(argv[1]) : 0;
  if (count <= 0) {
    std::fprintf(stderr, "usage: gpu_codes_bench ELEMENTS\n");
    return 2;
  }
  try {
    return aiacc::run(static_cast<std::size_t>(count));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
