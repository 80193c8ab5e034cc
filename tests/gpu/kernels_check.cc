// The kernels of csrc/kernels/batch_copy.cu on a GPU against their twins on the host, byte by byte.
// A program of its own, so that compute-sanitizer can run it: with an argument, on small sets.
// Ends with 1 and the job that differs.

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/kernels/batch_copier.h"
#include "tests/gpu/gpu_rig.h"

namespace aiacc {
namespace {

constexpr DataType kTypes[] = {DataType::kUInt8,
                               DataType::kInt32,
                               DataType::kInt64,
                               DataType::kFloat16,
                               DataType::kBFloat16,
                               DataType::kFloat32,
                               DataType::kFloat64};
constexpr WireFormat kWires[] = {WireFormat::kTensor,
                                 WireFormat::kFloat16,
                                 WireFormat::kBFloat16,
                                 WireFormat::kFloat8E4M3,
                                 WireFormat::kFloat8E5M2};
constexpr std::size_t kRoom = 64;  ///< between segments, never to be written

/// Bytes of which no float is a NaN, whose payload is nobody's promise: exponents stay small.
void fill(std::vector<std::byte>& memory, std::size_t element, std::mt19937& random) {
  for (std::size_t i = 0; i < memory.size(); ++i) {
    memory[i] = static_cast<std::byte>(random());
    if (element > 1 && i % element == element - 1) {
      memory[i] &= std::byte{0xbf};
    } else if (element == 1) {
      memory[i] &= std::byte{0x3f};
    }
  }
}

/// One batch of segments on both sides, which lie alike.
class Batch {
 public:
  Batch(GpuRig& rig, const CopyJob& job, const std::vector<std::size_t>& counts, unsigned seed)
      : rig_(rig), job_(job) {
    std::mt19937 random(seed);
    const bool packs = job.direction == CopyDirection::kPack;
    const std::size_t wire = size_on_wire(job.dtype, job.wire);
    in_element_ = packs ? size_of(job.dtype) : wire;
    const std::size_t out_element = packs ? wire : size_of(job.dtype);
    std::size_t in_bytes = 0;
    std::size_t out_bytes = 0;
    for (const std::size_t count : counts) {
      in_bytes += (random() % 4) * in_element_;  // some are aligned, some are not
      out_bytes += (random() % 4) * out_element;
      offsets_.push_back({in_bytes, out_bytes, count});
      in_bytes += count * in_element_ + kRoom;
      out_bytes += count * out_element + kRoom;
    }
    in_.resize(in_bytes);
    out_.resize(out_bytes, std::byte{0x5a});
    fill(in_, in_element_, random);
  }

  /// Whether the GPU gives what the host gives.
  bool agrees(BatchCopier& copier) {
    std::vector<CopyReport> reports(offsets_.size());
    DeviceMemory in(rig_, in_.size());
    DeviceMemory out(rig_, out_.size());
    DeviceMemory device_reports(rig_, reports.size() * sizeof(CopyReport));
    in.write(in_.data());
    out.write(out_.data());
    device_reports.write(reports.data());
    copier.enqueue(rig_.stream(),
                   job_,
                   segments(in.pointer(), out.pointer()),
                   job_.check ? reinterpret_cast<CopyReport*>(device_reports.pointer()) : nullptr);
    std::vector<std::byte> got(out_.size());
    std::vector<CopyReport> got_reports(reports.size());
    out.read(got.data());
    device_reports.read(got_reports.data());
    run_twin(segments(in_.data(), out_.data()), reports);
    return got == out_ &&
           std::memcmp(got_reports.data(), reports.data(), reports.size() * sizeof(CopyReport)) ==
               0;
  }

 private:
  struct Offset {
    std::size_t in;
    std::size_t out;
    std::size_t count;
  };

  std::vector<CopySegment> segments(const void* in, void* out) const {
    std::vector<CopySegment> made;
    for (const Offset& at : offsets_) {
      made.push_back({static_cast<const std::byte*>(in) + at.in,
                      static_cast<std::byte*>(out) + at.out,
                      at.count});
    }
    return made;
  }

  void run_twin(const std::vector<CopySegment>& segments, std::vector<CopyReport>& reports) const {
    LargeCopyBatch batch;
    const std::size_t kernel = choose_copy_kernel(job_, segments.data(), segments.size());
    plan_copies(copy_kernels()[kernel],
                job_,
                segments.data(),
                segments.size(),
                job_.check ? reports.data() : nullptr,
                batch);
    copy_kernels()[kernel].run_large(batch, 3);
  }

  GpuRig& rig_;
  const CopyJob job_;
  std::size_t in_element_ = 1;
  std::vector<Offset> offsets_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

std::string text_of(const CopyJob& job) {
  return std::string(name_of(job.dtype)) + " as " + name_of(job.wire) +
         (job.direction == CopyDirection::kPack ? ", packed" : ", unpacked") + ", times " +
         std::to_string(job.factor) + (job.check ? ", checked" : "");
}

int run(bool small) {
  GpuRig rig;
  BatchCopier copier(rig.driver());
  std::vector<std::size_t> counts{0, 1, 2, 7, 255, 256, 257, 4099};
  if (!small) {
    counts.insert(counts.end(), 200, 33);  // the kernel for large batches
    counts.push_back(1000003);
  }
  unsigned jobs = 0;
  for (const DataType dtype : kTypes) {
    for (const WireFormat wire : kWires) {
      for (const CopyDirection direction : {CopyDirection::kPack, CopyDirection::kUnpack}) {
        for (const double factor : {1.0, 0.5, 1.0 / 3}) {
          for (const bool check : {false, true}) {
            const CopyJob job{dtype, wire, direction, factor, check};
            try {
              if (!Batch(rig, job, counts, ++jobs).agrees(copier)) {
                std::printf("differs from its twin: %s\n", text_of(job).c_str());
                return 1;
              }
            } catch (const Error& error) {
              if (error.code() != Code::kUnsupported) {
                throw;
              }
              --jobs;
            }
          }
        }
      }
    }
  }
  std::printf("%u jobs of %zu segments agree with their twins\n", jobs, counts.size());
  return jobs == 0 ? 1 : 0;
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
