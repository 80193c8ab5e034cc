#pragma once

// Packing and unpacking by whoever has the kernels (their bodies on the host, a GPU) against plain
// loops over the functions of half.h, float8.h and scale.h.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/base/error.h"
#include "csrc/kernels/batch_copier.h"
#include "csrc/kernels/scale.h"
#include "tests/gpu/mirrored.h"

namespace aiacc {

inline constexpr WireFormat kNarrowWires[] = {
    WireFormat::kFloat16, WireFormat::kBFloat16, WireFormat::kFloat8E4M3, WireFormat::kFloat8E5M2};

/// Everything that a kernel can do.
inline std::vector<CopyJob> copy_jobs() {
  std::vector<CopyJob> jobs;
  for (const CopyDirection direction : {CopyDirection::kPack, CopyDirection::kUnpack}) {
    for (const double factor : {1.0, 0.5, 1.0 / 3, -3.0}) {
      for (const DataType dtype : all_dtypes()) {
        jobs.push_back({dtype, WireFormat::kTensor, direction, factor, false});
      }
      for (const WireFormat wire : kNarrowWires) {
        jobs.push_back({DataType::kFloat32, wire, direction, factor, false});
      }
    }
  }
  const std::size_t unchecked = jobs.size();
  for (std::size_t i = 0; i < unchecked; ++i) {
    if (is_floating(jobs[i].dtype)) {
      jobs.push_back(jobs[i]);
      jobs.back().check = true;
    }
  }
  return jobs;
}

/// One element, moved.
inline void copy_plainly(void* out, const void* in, const CopyJob& job) {
  float value = 0;
  std::uint16_t bits = 0;
  if (job.wire == WireFormat::kTensor) {
    copy_scaled(out, in, 1, job.dtype, job.factor);
  } else if (job.direction == CopyDirection::kPack) {
    std::memcpy(&value, in, sizeof value);
    scale(&value, &value, 1, DataType::kFloat32, job.factor);
    bits = narrow_plainly(value, job.wire);
    std::memcpy(out, &bits, size_on_wire(job.dtype, job.wire));
  } else {
    std::memcpy(&bits, in, size_on_wire(job.dtype, job.wire));
    value = widen_plainly(bits, job.wire);
    scale(&value, &value, 1, DataType::kFloat32, job.factor);
    std::memcpy(out, &value, sizeof value);
  }
}

/// Whether two outputs have the same bits, or are both NaN.
inline bool same_copies(const void* a, const void* b, const CopyJob& job) {
  if (job.wire == WireFormat::kTensor || job.direction == CopyDirection::kUnpack) {
    bool alike = false;
    visit_dtype(job.dtype, [&](auto x) {
      auto y = x;
      std::memcpy(&x, a, sizeof x);
      std::memcpy(&y, b, sizeof y);
      alike = same(x, y);
    });
    return alike;
  }
  std::uint16_t x = 0;
  std::uint16_t y = 0;
  std::memcpy(&x, a, size_on_wire(job.dtype, job.wire));
  std::memcpy(&y, b, size_on_wire(job.dtype, job.wire));
  return x == y || (is_nan(widen_plainly(x, job.wire)) && is_nan(widen_plainly(y, job.wire)));
}

/// The bodies on the host: so many blocks, one thread after another.
struct CopyTwin {
  std::uint32_t blocks;

  void operator()(const CopyJob& job,
                  const std::vector<CopySegment>& segments,
                  CopyReport* reports = nullptr) const {
    const std::size_t number = choose_copy_kernel(job, segments.data(), segments.size());
    const CopyKernel& kernel = copy_kernels()[number];
    for (std::size_t at = 0; at < segments.size(); at += 1022) {
      const std::size_t count = std::min<std::size_t>(1022, segments.size() - at);
      CopyReport* const some_reports = reports == nullptr ? nullptr : reports + at;
      if (count <= 126) {
        run<SmallCopyBatch>(kernel, kernel.run_small, job, &segments[at], count, some_reports);
      } else {
        run<LargeCopyBatch>(kernel, kernel.run_large, job, &segments[at], count, some_reports);
      }
    }
  }

 private:
  template <class Batch, class Run>
  void run(const CopyKernel& kernel,
           Run run_batch,
           const CopyJob& job,
           const CopySegment* segments,
           std::size_t count,
           CopyReport* reports) const {
    const auto batch = std::make_unique<Batch>();
    plan_copies(kernel, job, segments, count, reports, *batch);
    run_batch(*batch, blocks);
  }
};

/// Moves tensors of so many elements that lie anywhere, with room between them, by `run(job,
/// segments, reports)`; its reports have to be those of the bodies on the host. What differs, or
/// "".
template <class Run>
std::string check_copies(GpuRig& rig,
                         const Run& run,
                         const CopyJob& job,
                         const std::vector<std::size_t>& counts,
                         unsigned seed) {
  const bool packs = job.direction == CopyDirection::kPack;
  const std::size_t wire = size_on_wire(job.dtype, job.wire);
  const std::size_t from = packs ? size_of(job.dtype) : wire;
  const std::size_t to = packs ? wire : size_of(job.dtype);
  std::mt19937 random(seed);
  std::vector<CopySegment> offsets;  // from addresses of zero
  std::vector<unsigned char> input;
  std::size_t end = 0;
  for (const std::size_t count : counts) {
    input.resize(input.size() + random() % 4 * from);  // some are aligned, some are not
    end += random() % 4 * to;
    offsets.push_back({reinterpret_cast<void*>(input.size()), reinterpret_cast<void*>(end), count});
    const auto seed_here = static_cast<unsigned>(random());
    visit_dtype(job.dtype, [&](auto element) {
      for (auto value : any_elements<decltype(element)>(count, seed_here)) {
        unsigned char bytes[8];
        if (job.check && !std::isfinite(number_of(value))) {
          value = element;  // what is reported beside it depends on which thread meets what
        }
        if (packs) {
          std::memcpy(bytes, &value, sizeof value);
        } else {  // what a peer has packed
          CopyJob packing = job;
          packing.direction = CopyDirection::kPack;
          packing.factor = 1;
          copy_plainly(bytes, &value, packing);
        }
        input.insert(input.end(), bytes, bytes + from);
      }
    });
    input.resize(input.size() + 3 * from);
    end += count * to + 3 * to;
  }
  Mirrored<unsigned char> in(rig, input);
  Mirrored<unsigned char> out(rig, std::vector<unsigned char>(end, 0xa5));
  Mirrored<CopyReport> reports(rig, std::vector<CopyReport>(counts.size()));
  const auto segments = [&](unsigned char* ins, unsigned char* outs) {
    std::vector<CopySegment> made = offsets;
    for (CopySegment& segment : made) {
      segment.in = ins + reinterpret_cast<std::uintptr_t>(segment.in);
      segment.out = outs + reinterpret_cast<std::uintptr_t>(segment.out);
    }
    return made;
  };
  run(job, segments(in.device(), out.device()), job.check ? reports.device() : nullptr);
  if (job.check) {
    CopyTwin{3}(job, segments(in.host(), out.host()), reports.host());
  }
  std::vector<unsigned char> got = out.read();
  for (const CopySegment& segment : segments(in.host(), out.host())) {
    const auto* source = static_cast<const unsigned char*>(segment.in);
    auto* target = static_cast<unsigned char*>(segment.out);
    for (std::size_t i = 0; i < segment.count; ++i, source += from, target += to) {
      copy_plainly(target, source, job);
      unsigned char* const found = got.data() + (target - out.host());
      if (same_copies(target, found, job)) {
        std::memcpy(found, target, to);
      }
    }
  }
  const bool is_right = std::memcmp(got.data(), out.host(), end) == 0 && reports.equal();
  return is_right ? ""
                  : std::string(name_of(job.dtype)) + " as " + name_of(job.wire) +
                        (packs ? ", packed" : ", unpacked") + ", times " +
                        std::to_string(job.factor) + (job.check ? ", checked" : "") +
                        ": differs, of " + std::to_string(counts.size()) + " tensors";
}

}  // namespace aiacc
