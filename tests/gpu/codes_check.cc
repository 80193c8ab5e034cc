// The kernels of csrc/kernels/gpu on a GPU against the CPU's, byte by byte. A program of its own,
// so that compute-sanitizer can run it: with an argument, on small tensors. Ends with 1 and what
// differs.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/kernels/gpu/block_coder.h"
#include "csrc/kernels/gpu/device_selector.h"
#include "csrc/kernels/gpu/pair_adder.h"
#include "csrc/kernels/quantise.h"
#include "tests/gpu/gpu_rig.h"

namespace aiacc {
namespace {

using Bytes = std::vector<unsigned char>;

/// Of many sizes; of more than 1024 numbers one of the first 1024 is infinite.
std::vector<float> numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = std::ldexp(normal(random), static_cast<int>(i / 128 % 9) - 4);
  }
  if (count > 1024) {
    values[700] = INFINITY;
  }
  return values;
}

/// Memory of the GPU `shift` bytes behind an aligned address, filled with bytes of the host.
class Mirror {
 public:
  Mirror(GpuRig& rig, const void* from, std::size_t bytes, std::size_t shift)
      : memory_(rig, bytes + shift), shift_(shift), bytes_(bytes) {
    Bytes all(bytes + shift);
    std::memcpy(all.data() + shift, from, bytes);
    memory_.write(all.data());
  }
  unsigned char* pointer() const { return static_cast<unsigned char*>(memory_.pointer()) + shift_; }
  bool equals(const void* expected) {
    Bytes all(bytes_ + shift_);
    memory_.read(all.data());
    return std::memcmp(all.data() + shift_, expected, bytes_) == 0;
  }

 private:
  DeviceMemory memory_;
  std::size_t shift_;
  std::size_t bytes_;
};

/// What differs, or "".
std::string check_blocks(GpuRig& rig,
                         const BlockCoder& coder,
                         const BlockCode& code,
                         std::size_t count,
                         std::size_t shift,
                         const Rounding& rounding) {
  const std::size_t size = count * sizeof(float);
  const std::vector<float> in = numbers(count, 1);
  std::vector<float> residual = numbers(count, 2);
  std::vector<float> out = numbers(count, 3);
  Bytes wire(encoded_bytes(count, code), 0x5a);
  const Mirror in_mirror(rig, in.data(), size, shift);
  Mirror residual_mirror(rig, residual.data(), size, shift);
  Mirror out_mirror(rig, out.data(), size, shift);
  Mirror wire_mirror(rig, wire.data(), wire.size(), shift);
  coder.encode(rig.stream(),
               wire_mirror.pointer(),
               in_mirror.pointer(),
               residual_mirror.pointer(),
               count,
               code,
               0.7F,
               rounding,
               1024);
  encode_blocks(wire.data(), in.data(), residual.data(), count, code, 0.7F, rounding, 1024);
  if (!wire_mirror.equals(wire.data())) {
    return "encoded";
  }
  if (!residual_mirror.equals(residual.data())) {
    return "residual";
  }
  // Decoders read what both sides have, without the block that is not finite: which of its NaN one
  // gets is nobody's promise.
  const std::size_t skipped = count > 1024 ? 1024 : 0;
  const std::size_t from = encoded_bytes(skipped, code);
  coder.decode_add(rig.stream(),
                   out_mirror.pointer() + skipped * sizeof(float),
                   wire_mirror.pointer() + from,
                   count - skipped,
                   code);
  decode_add_blocks(out.data() + skipped, wire.data() + from, count - skipped, code);
  if (!out_mirror.equals(out.data())) {
    return "decoded and added";
  }
  coder.decode(rig.stream(),
               out_mirror.pointer() + skipped * sizeof(float),
               wire_mirror.pointer() + from,
               count - skipped,
               code,
               1.0F / 3);
  decode_blocks(out.data() + skipped, wire.data() + from, count - skipped, code, 1.0F / 3);
  return out_mirror.equals(out.data()) ? "" : "decoded";
}

int run_blocks(GpuRig& rig, const std::vector<std::size_t>& counts) {
  const BlockCoder coder(rig.driver());
  int jobs = 0;
  for (int format = 0; format < 3; ++format) {
    for (const std::uint32_t block : {128, 256, 512, 1024}) {
      for (const std::size_t count : counts) {
        for (const std::size_t shift : {0, 4}) {
          for (const bool stochastic : {false, true}) {
            const BlockCode code = {static_cast<BlockFormat>(format), block};
            const std::string wrong =
                check_blocks(rig, coder, code, count, shift, {stochastic, 77});
            if (!wrong.empty()) {
              std::printf("differs: %s, format %d, blocks of %u, %zu elements, %zu bytes on, %s\n",
                          wrong.c_str(),
                          format,
                          block,
                          count,
                          shift,
                          stochastic ? "stochastic" : "nearest");
              return -1;
            }
            ++jobs;
          }
        }
      }
    }
  }
  return jobs;
}

/// Steps of one buffer; the residual goes from one memory to another, or stays. What differs, or
/// "".
std::string check_selection(GpuRig& rig,
                            const DeviceSelector& selector,
                            SelectMode mode,
                            std::size_t count,
                            std::size_t k,
                            std::size_t shift,
                            bool moves) {
  const std::size_t size = count * sizeof(float);
  std::vector<float> residual(count);
  Mirror first(rig, residual.data(), size, shift);
  Mirror second(rig, residual.data(), size, shift);
  Mirror* residuals[2] = {&first, moves ? &second : &first};
  const SelectState fresh = {};
  Mirror state(rig, &fresh, sizeof fresh, 0);
  const DeviceMemory workspace(rig, select_workspace_bytes(count, k));
  std::vector<std::uint32_t> wire(2 * k);
  Mirror wire_mirror(rig, wire.data(), wire.size() * 4, 0);
  ThresholdTrack track;
  SelectScratch scratch;
  for (unsigned step = 0; step < 6; ++step) {
    std::vector<float> in = numbers(count, step);
    if (count > 700) {
      in[700] = step == 3 ? INFINITY : 1.0F;
    }
    if (step == 4) {
      std::fill(in.begin(), in.end(), 2.5F);  // ties
    }
    const Mirror in_mirror(rig, in.data(), size, shift);
    selector.select(rig.stream(),
                    plan_selection(wire_mirror.pointer(),
                                   reinterpret_cast<const float*>(in_mirror.pointer()),
                                   reinterpret_cast<float*>(residuals[step % 2]->pointer()),
                                   reinterpret_cast<float*>(residuals[1 - step % 2]->pointer()),
                                   count,
                                   k,
                                   0.7F,
                                   mode,
                                   step,
                                   reinterpret_cast<SelectState*>(state.pointer()),
                                   workspace.pointer()));
    select_largest(
        wire.data(), in.data(), residual.data(), count, k, 0.7F, mode, step, track, scratch);
    if (!wire_mirror.equals(wire.data())) {
      return "pairs of step " + std::to_string(step);
    }
    if (!residuals[1 - step % 2]->equals(residual.data())) {
      return "residual of step " + std::to_string(step);
    }
  }
  return "";
}

int run_selections(GpuRig& rig, const std::vector<std::size_t>& counts) {
  const DeviceSelector selector(rig.driver());
  int jobs = 0;
  for (int mode = 0; mode < 3; ++mode) {
    for (const std::size_t count : counts) {
      for (const std::size_t k : {std::size_t{1}, (count + 99) / 100, count}) {
        for (const std::size_t shift : {0, 4}) {
          for (const bool moves : {false, true}) {
            const std::string wrong = check_selection(
                rig, selector, static_cast<SelectMode>(mode), count, k, shift, moves);
            if (!wrong.empty()) {
              std::printf("differs: %s, mode %d, %zu of %zu, %zu bytes on, %s\n",
                          wrong.c_str(),
                          mode,
                          k,
                          count,
                          shift,
                          moves ? "moved" : "in place");
              return -1;
            }
            ++jobs;
          }
        }
      }
    }
  }
  return jobs;
}

/// Pairs of ranks, one after the other.
int run_pairs(GpuRig& rig, const std::vector<std::size_t>& counts) {
  constexpr unsigned kRanks = 3;
  const PairAdder adder(rig.driver());
  int jobs = 0;
  for (const std::size_t count : counts) {
    for (const std::size_t k : {std::size_t{1}, (count + 99) / 100, count}) {
      std::vector<float> out(count, 0.0F);
      Mirror out_mirror(rig, out.data(), count * sizeof(float), 4);
      ThresholdTrack track;
      SelectScratch scratch;
      for (unsigned rank = 0; rank < kRanks; ++rank) {
        std::vector<float> in = numbers(count, rank);
        in[std::min<std::size_t>(count - 1, 700)] = 1.0F;
        std::vector<std::uint32_t> wire(2 * k);
        select_largest(wire.data(),
                       in.data(),
                       nullptr,
                       count,
                       k,
                       1.0F,
                       SelectMode::kExact,
                       rank,
                       track,
                       scratch);
        const Mirror wire_mirror(rig, wire.data(), wire.size() * 4, 0);
        adder.add(rig.stream(),
                  reinterpret_cast<float*>(out_mirror.pointer()),
                  wire_mirror.pointer(),
                  k,
                  count);
        scatter_add(out.data(), wire.data(), k, count, 1.0F);
      }
      if (!out_mirror.equals(out.data())) {
        std::printf("differs: sum of %zu of %zu\n", k, count);
        return -1;
      }
      ++jobs;
    }
  }
  return jobs;
}

int run(bool small) {
  GpuRig rig;
  std::vector<std::size_t> counts = {1, 127, 1024, 5000};
  if (!small) {
    counts.push_back(3000001);
  }
  const int blocks = run_blocks(rig, counts);
  if (blocks <= 0) {
    return 1;
  }
  const int selections = run_selections(rig, counts);
  if (selections <= 0) {
    return 1;
  }
  const int pairs = run_pairs(rig, counts);
  if (pairs <= 0) {
    return 1;
  }
  std::printf("%d block codes, %d selections and %d sums of pairs agree with their twins\n",
              blocks,
              selections,
              pairs);
  return 0;
}

}  // namespace
}  // namespace aiacc

int main(int argc, char**) {
  try {
    return aiacc::run(argc > 1);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
