// Bandwidth of the kernels that pack and unpack, against copies of the driver, on GPU 0.
// Argument: a file with one number of elements per line, the float32 tensors of a set. Writes JSON.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "bench/gpu/samples.h"
#include "csrc/kernels/batch_copier.h"
#include "tests/gpu/gpu_rig.h"

namespace aiacc {
namespace {

int run(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::size_t> counts;
  for (std::size_t count = 0; file >> count;) {
    counts.push_back(count);
  }
  if (counts.empty()) {
    std::fprintf(
        stderr, "%s has no numbers (expected one number of elements per line)\n", path.c_str());
    return 1;
  }
  GpuRig rig;
  BatchCopier copier(rig.driver());
  std::size_t bytes = 0;
  for (const std::size_t count : counts) {
    bytes += (count * sizeof(float) + 255) / 256 * 256;
  }
  DeviceMemory tensors(rig, bytes);
  DeviceMemory wire(rig, bytes);
  AIACC_CUDA_CHECK(rig.driver(),
                   fill_async,
                   reinterpret_cast<CudaAddress>(tensors.pointer()),
                   0,
                   bytes,
                   rig.stream());
  std::vector<CopySegment> pack;
  std::size_t payload = 0;
  std::size_t tensor_offset = 0;
  for (const std::size_t count : counts) {
    pack.push_back({static_cast<const std::byte*>(tensors.pointer()) + tensor_offset,
                    static_cast<std::byte*>(wire.pointer()) + payload,
                    count});
    payload += count * sizeof(float);
    tensor_offset += (count * sizeof(float) + 255) / 256 * 256;
  }
  const auto copy = [&](void* to, const void* from, std::size_t size) {
    AIACC_CUDA_CHECK(rig.driver(),
                     copy_async,
                     reinterpret_cast<CudaAddress>(to),
                     reinterpret_cast<CudaAddress>(from),
                     size,
                     rig.stream());
  };
  const auto kernel = [&](const char* name, CopyJob job, std::size_t written) {
    print_row(
        name, payload, written, measure(rig, [&] { copier.enqueue(rig.stream(), job, pack); }));
  };
  std::printf("[");
  print_row("one copy of as many bytes", payload, payload, measure(rig, [&] {
              copy(wire.pointer(), tensors.pointer(), payload);
            }));
  print_row("a copy for each tensor", payload, payload, measure(rig, [&] {
              for (const CopySegment& segment : pack) {
                copy(segment.out, segment.in, segment.count * sizeof(float));
              }
            }));
  CopyJob job;
  kernel("pack", job, payload);
  job.factor = 0.125;
  kernel("pack, scaled", job, payload);
  for (const WireFormat format : {WireFormat::kFloat16, WireFormat::kBFloat16}) {
    job.wire = format;
    kernel((std::string("pack, scaled, as ") + name_of(format)).c_str(), job, payload / 2);
  }
  job.wire = WireFormat::kFloat8E4M3;
  kernel("pack, scaled, as float8_e4m3", job, payload / 4);
  std::printf("\n]\n");
  return 0;
}

}  // namespace
}  // namespace aiacc

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gpu_kernels_bench FILE\n");
    return 2;
  }
  try {
    return aiacc::run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
