// What block quantisation costs one thread, beside a copy of the same float32 numbers: rounds of
// copy, encode, decode and decode with addition in turn, of 25 M elements unless told otherwise.
// Prints one JSON object for each vector level and format: medians in GB/s of float32 bytes, how
// many times as long as a copy encode and decode take together, and all milliseconds.
//
//   quantise_bench [elements [rounds [block [level]]]]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/kernels/quantise.h"
#include "csrc/kernels/vector/level.h"

namespace {

using aiacc::BlockCode;
using aiacc::BlockFormat;
using aiacc::Rounding;
using aiacc::VectorLevel;
using SteadyClock = std::chrono::steady_clock;

template <class Work>
double seconds(const Work& work) {
  const auto start = SteadyClock::now();
  work();
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

void print_samples(const char* name, const std::vector<double>& samples, const char* end) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::printf("%s%.3f", i == 0 ? "" : ", ", samples[i] * 1e3);
  }
  std::printf("]%s", end);
}

struct Subject {
  const char* name;
  BlockFormat format;
  bool stochastic;
  bool feedback;  ///< with a residual
};

/// Of what has been decoded, whose largest number is 1.
void expect_near(const std::vector<float>& in, const std::vector<float>& out, float tolerance) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!(std::abs(in[i] - out[i]) <= tolerance)) {
      std::fprintf(stderr, "element %zu: %g became %g\n", i, in[i], out[i]);
      std::exit(1);
    }
  }
}

void measure(const VectorLevel& level,
             const Subject& subject,
             std::uint32_t block,
             const std::vector<float>& in,
             int rounds) {
  const std::size_t count = in.size();
  const BlockCode code = {subject.format, block};
  const Rounding rounding = {subject.stochastic, 1};
  std::vector<unsigned char> wire(aiacc::encoded_bytes(count, code));
  std::vector<float> residual(subject.feedback ? count : 0);
  std::vector<float> out(count);
  void* const rest = subject.feedback ? residual.data() : nullptr;
  std::vector<double> copy;
  std::vector<double> encode;
  std::vector<double> decode;
  std::vector<double> add;
  for (int round = -1; round < rounds; ++round) {
    std::fill(residual.begin(), residual.end(), 0.0F);
    const double copied =
        seconds([&] { std::memcpy(out.data(), in.data(), count * sizeof(float)); });
    const double encoded = seconds(
        [&] { level.encode_blocks(wire.data(), in.data(), rest, count, code, 1.0F, rounding, 0); });
    const double decoded =
        seconds([&] { level.decode_blocks(out.data(), wire.data(), count, code, 1.0F); });
    if (round < 0) {  // pays for new pages
      expect_near(in, out, subject.format == BlockFormat::kInt8 ? 1.0F / 127 : 1.0F / 13);
      continue;
    }
    copy.push_back(copied);
    encode.push_back(encoded);
    decode.push_back(decoded);
    add.push_back(seconds([&] { level.decode_add_blocks(out.data(), wire.data(), count, code); }));
  }
  const double gigabytes = static_cast<double>(count) * sizeof(float) / 1e9;
  std::printf(
      "{\"format\": \"%s\", \"block\": %u, \"level\": \"%s\", \"copy_gbs\": %.2f, "
      "\"encode_gbs\": %.2f, \"decode_gbs\": %.2f, \"decode_add_gbs\": %.2f, "
      "\"times_copy\": %.3f, \"samples_ms\": {",
      subject.name,
      block,
      level.name,
      gigabytes / median(copy),
      gigabytes / median(encode),
      gigabytes / median(decode),
      gigabytes / median(add),
      (median(encode) + median(decode)) / median(copy));
  print_samples("copy", copy, ", ");
  print_samples("encode", encode, ", ");
  print_samples("decode", decode, ", ");
  print_samples("decode_add", add, "}}\n");
}

}  // namespace

int main(int argc, char** argv) {
  const auto count = static_cast<std::size_t>(argc > 1 ? std::atoll(argv[1]) : 25'000'000);
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const auto block = static_cast<std::uint32_t>(argc > 3 ? std::atoi(argv[3]) : 256);
  const char* only = argc > 4 ? argv[4] : nullptr;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<float> in(count);
  for (float& value : in) {
    value = uniform(random);
  }
  for (const VectorLevel* level : aiacc::runnable_vector_levels()) {
    if (only != nullptr && std::strcmp(only, level->name) != 0) {
      continue;
    }
    for (const Subject& subject : {Subject{"int8", BlockFormat::kInt8, false, false},
                                   Subject{"int8, residual", BlockFormat::kInt8, false, true},
                                   Subject{"int8, stochastic", BlockFormat::kInt8, true, false},
                                   Subject{"int4", BlockFormat::kInt4, false, false},
                                   Subject{"float8", BlockFormat::kFloat8E4M3, false, false}}) {
      measure(*level, subject, block, in, rounds);
    }
  }
  return 0;
}
