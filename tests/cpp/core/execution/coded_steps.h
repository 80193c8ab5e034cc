#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "csrc/core/submission/tensor_table.h"
#include "csrc/engines/coding.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {

// Coded all-reduces, to be run where tensors are in host memory and where they are on GPUs: the
// results shall be equal to the last bit.

/// Where the tensors of an operation are: input, output, residual.
using CodedTensors = std::vector<std::array<float*, 3>>;

/// For `Coordinator::acquire`.
inline void assign_coded(Operation& operation,
                         const Request& request,
                         const CodedTensors& tensors) {
  operation.request = request;
  operation.buffers.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    TensorBuffers& buffers = operation.buffers[i];
    buffers.input = tensors[i][0];
    buffers.output = tensors[i][1];
    buffers.residual = tensors[i][2];
  }
}

/// Normal numbers, so that sums in another order would have other bits. Small, so that sums and
/// residuals stay so.
inline std::vector<float> normal_floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) {
    value = distribution(random);
  }
  return values;
}

/// Bits of float32, by tensor.
using CodedResults = std::vector<std::vector<std::uint32_t>>;

inline std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

/// Some steps of tensors of different forms, with residuals from step to step or without. Calls
/// `run(request, tensors)` for each, which returns when results and residuals are there; the
/// request is that of host memory. Returns all results and all residuals.
///
/// A tensor that takes several units; one that is shorter than a block for every rank, and lies at
/// an odd address; one with another output; a group, of which one tensor has no residual and one is
/// empty; single numbers. `process_set`: of all of them.
template <class Run>
CodedResults coded_steps(
    int rank, const Coding& coding, bool feedback, std::uint32_t process_set, Run run) {
  constexpr int kSteps = 3;
#ifdef __SANITIZE_THREAD__  // where each access is slow
  constexpr std::size_t kSeveralUnits = 50'003;
#else
  constexpr std::size_t kSeveralUnits = 200'003;
#endif
  struct Form {
    const char* name;
    std::vector<std::size_t> counts;
    bool in_place;
    double prescale;
    double postscale;
  };
  const std::vector<Form> forms = {{"cut", {kSeveralUnits}, true, 1, 1},
                                   {"short", {150}, true, 1, 1},
                                   {"apart", {3001}, false, 1, 1},
                                   {"scaled", {3001}, false, 0.3, 1.7},
                                   {"group", {300, 5, 0, 1000}, true, 0.5, 3},
                                   {"one", {1}, true, 1, 1}};
  CodedResults results;
  for (const Form& form : forms) {
    std::size_t total = 1;  // so that everything is at an odd multiple of 4
    for (const std::size_t count : form.counts) {
      total += count;
    }
    std::vector<float> residuals(total);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> values =
          normal_floats(total, static_cast<std::uint32_t>(1000 * rank + 10 * step) + 1);
      if (form.counts.front() == 1) {  // pairs of three ranks are added up by a dense all-reduce
        values[1] = static_cast<float>(rank + step + 1);
      }
      std::vector<float> outputs(form.in_place ? 0 : total, -1.0F);
      Request request = make_request(form.name, {static_cast<std::int64_t>(form.counts[0])});
      request.wire = coding.format;
      request.wire_detail = coding.detail;
      request.op = step == 1 ? ReduceOp::kAverage : ReduceOp::kSum;
      request.prescale = form.prescale;
      request.postscale = form.postscale;
      request.process_set = process_set;
      CodedTensors tensors;
      std::size_t at = 1;
      for (std::size_t i = 0; i < form.counts.size(); ++i) {
        if (i > 0) {
          request.tensors.push_back(
              {DataType::kFloat32, {static_cast<std::int64_t>(form.counts[i])}});
        }
        float* out = form.in_place ? values.data() + at : outputs.data() + at;
        tensors.push_back({values.data() + at, out, feedback && i != 1 ? &residuals[at] : nullptr});
        at += form.counts[i];
      }
      run(std::as_const(request), std::as_const(tensors));
      results.push_back(bits_of(form.in_place ? values : outputs));
      results.push_back(bits_of(residuals));
    }
  }
  return results;
}

/// Those of blocks, and of the largest elements.
inline std::vector<Coding> block_codings() {
  return {{WireFormat::kInt8Blocks, 256},
          {WireFormat::kInt8Blocks, 128 + Coding::kStochastic},
          {WireFormat::kInt4Blocks, 512},
          {WireFormat::kFloat8Blocks, 1024}};
}
inline std::vector<Coding> largest_codings() {
  return {{WireFormat::kLargest, 10'000}, {WireFormat::kLargest, 100'000 + Coding::kExact}};
}

}  // namespace aiacc
