// What a coordinator refuses where it is called: nothing is submitted, and the job goes on.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "csrc/engines/coding.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {
namespace {

/// What is changed of an operation on "x", and the error.
struct Refusal {
  std::string text;
  OpKind kind;
  std::function<void(Request&)> change;
  Code code = Code::kInvalidArgument;
  bool reads = true;  ///< whether there is an input, and memory for the output
  bool writes = true;
};

/// Of 3 ranks.
const std::vector<Refusal>& refusals() {
  constexpr OpKind kSum = OpKind::kAllreduce;
  constexpr OpKind kGather = OpKind::kAllgather;
  constexpr OpKind kScatter = OpKind::kReducescatter;
  constexpr OpKind kCast = OpKind::kBroadcast;
  constexpr OpKind kExchange = OpKind::kAlltoall;
  const std::string scalar = "'x': a 0-dimensional tensor";
  const std::string eight_bits = "wire format float8_e5m2 in host memory (expected float16";
  const std::string input = "'x': input of tensor 0 NULL (expected an address)";
  const std::string output = "'x': output of tensor 0 NULL (expected an address)";
  constexpr Code kBad = Code::kInvalidArgument;
  const auto rows = [](Request& r) { r.tensors[0].shape = {3}; };  // one for each rank
  static const std::vector<Refusal> all = {
      {"a name of 65537 bytes", kSum, [](auto& r) { r.name.assign(kMaxNameBytes + 1, 'x'); }},
      {"65 dimensions", kSum, [](auto& r) { r.tensors[0].shape.assign(kMaxDimensions + 1, 1); }},
      {scalar, kGather, [](auto& r) { r.tensors[0].shape.clear(); }},
      {scalar, kGather, [](auto& r) { r.tensors = {r.tensors[0], {DataType::kFloat32, {}}}; }},
      {scalar, kScatter, [](auto& r) { r.tensors[0].shape.clear(); }},
      {"'x': root_rank 3 (expected 0..2)", kCast, [](auto& r) { r.root = 3; }},
      {"[submit] an unnamed broadcast: root_rank",
       kCast,
       [](auto& r) {
         r.name.clear();
         r.root = 3;
       }},
      {"'x': op=Min", kScatter, [](auto& r) { r.op = ReduceOp::kMin; }},
      {"'x': 4 splits (expected one per rank, 3)",
       kExchange,
       [](auto& r) { r.numbers = {0, 0, 0, 0}; }},
      {"'x': splits [-1, 0, 0] (expected no neg",
       kExchange,
       [](auto& r) { r.numbers = {-1, 0, 0}; }},
      {"'x': splits [0, 0, 2] (expected a sum of at most 1",
       kExchange,
       [](auto& r) { r.numbers = {0, 0, 2}; }},
      {"op=Adasum of int32",
       kSum,
       [](auto& r) {
         r.op = ReduceOp::kAdasum;
         r.tensors[0].dtype = DataType::kInt32;
       }},
      {"op=Adasum over 3 ranks (expected a power of two)",
       kSum,
       [](auto& r) { r.op = ReduceOp::kAdasum; },
       Code::kUnsupported},
      {eight_bits, kSum, [](auto& r) { r.wire = WireFormat::kFloat8E5M2; }},
      {"process set 1 is not registered", kSum, [](auto& r) { r.process_set = 1; }},
      {input, kSum, rows, kBad, false},
      {input,
       kSum,
       [](auto& r) { r.tensors = {r.tensors[0], {DataType::kFloat32, {0}}}; },
       kBad,
       false},
      {output, kSum, rows, kBad, true, false},
      {input, kGather, rows, kBad, false},
      {output, kCast, rows, kBad, true, false},
      {input, kScatter, rows, kBad, false},
      {output, kScatter, rows, kBad, true, false},
      {input, kExchange, [](auto& r) { r.numbers = {1, 0, 0}; }, kBad, false}};
  return all;
}

/// Of a format that is narrower than float32.
std::vector<Refusal> refusals_of(const Coding& coding) {
  const std::string name = std::string("wire format ") + name_of(coding.format);
  const OpKind sum = OpKind::kAllreduce;
  std::vector<Refusal> all = {
      {name + " (expected an all-reduce, and not Adasum)",
       sum,
       [](auto& r) { r.op = ReduceOp::kAdasum; }},
      {name + " (expected an all-reduce", OpKind::kReducescatter, [](auto&) {}},
      {name + " for float64 (expected float32)",
       sum,
       [](auto& r) { r.tensors[0].dtype = DataType::kFloat64; }},
      {name + " for int32 (expected float32)", sum, [](auto& r) {
         r.tensors = {r.tensors[0], {DataType::kInt32, {1}}};
       }}};
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    if (is_coded(coding.format)) {
      all.push_back({name + " with op=" + name_of(op) + " (expected Sum or Average)",
                     sum,
                     [op](auto& r) { r.op = op; }});
    }
  }
  return all;
}

void expect_refusals(Coordinator& coordinator,
                     const std::vector<Refusal>& all,
                     const Coding& coding = {WireFormat::kTensor, 0}) {
  for (const Refusal& refusal : all) {
    Request request = make_request("x", refusal.kind, {1});
    request.wire = coding.format;
    request.wire_detail = coding.detail;
    refusal.change(request);
    float value = 1;
    float* in = refusal.reads ? &value : nullptr;
    float* out = refusal.writes ? &value : nullptr;
    expect_error(
        status_of([&] { submit(coordinator, request, in, out); }), refusal.code, {refusal.text});
  }
}

TEST(CoordinatorRefusals, RequestsThatCannotBe) {
  CoordinatorWorld world(3);
  with_coordinators(world, [](int, RankParts& parts) {
    expect_refusals(*parts.coordinator, refusals());
    sum(*parts.coordinator, "x", 1);
  });
}

TEST(CoordinatorRefusals, WireFormatsOfTheWrongTensors) {
  CoordinatorWorld world(1);
  with_coordinators(world, [](int, RankParts& parts) {
    for (const Coding& coding : {Coding{WireFormat::kBFloat16, 0},
                                 Coding{WireFormat::kInt8Blocks, 128},
                                 Coding{WireFormat::kInt4Blocks, 256},
                                 Coding{WireFormat::kFloat8Blocks, 256},
                                 Coding{WireFormat::kLargest, 100'000 + Coding::kExact}}) {
      expect_refusals(*parts.coordinator, refusals_of(coding), coding);
    }
    for (const auto& [coding, text] :
         {std::pair(Coding{WireFormat::kInt8Blocks, 200}, "blocks of 200 "),
          {{WireFormat::kTensor, 7}, "number 7 (expected none)"}}) {
      expect_refusals(*parts.coordinator, {{text, OpKind::kAllreduce, [](Request&) {}}}, coding);
    }
  });
}

TEST(CoordinatorRefusals, ParametersThatCannotBe) {
  with_coordinators({}, [](int, RankParts& parts) {
    for (const Parameters& parameters : {Parameters{0, 0, 1}, {0, 1, 0}, {0, 1, 3}}) {
      expect_error(status_of([&] { parts.coordinator->propose(parameters); }),
                   Code::kInvalidArgument);
    }
    sum(*parts.coordinator, "x", 1);
  });
}

TEST(CoordinatorRefusals, ProcessSetsAndWhoIsNotInThem) {
  CoordinatorWorld world(3);
  with_coordinators(world, [](int rank, RankParts& parts) {
    Coordinator& coordinator = *parts.coordinator;
    const auto refused = [](const auto& call, const std::vector<std::string>& parts_of_text) {
      expect_error(status_of(call), Code::kInvalidArgument, parts_of_text);
    };
    const std::uint32_t id = coordinator.add_process_set({1, 2});
    Request request = make_request("x", {1});
    request.process_set = id;
    float value = 1;
    if (rank == 0) {
      refused([&] { submit(coordinator, request, &value, &value); },
              {"rank 0", "process set " + std::to_string(id)});
    } else {
      request.kind = OpKind::kBroadcast;  // its root is a global rank
      refused([&] { submit(coordinator, request, &value, &value); }, {"root_rank 0"});
    }
    for (const std::vector<int>& ranks : {std::vector<int>{}, {-1}, {0, 3}, {1, 1}}) {
      refused([&] { coordinator.add_process_set(ranks); }, {});
    }
    refused([&] { coordinator.add_process_set({2, 1}); }, {"process set " + std::to_string(id)});
    const int other = (rank + 1) % 3;
    refused(
        [&] { coordinator.form_process_set("a", {other}); },
        {"'a' of ranks [" + std::to_string(other) + "], formed by rank " + std::to_string(rank)});
    refused([&] { coordinator.form_process_set("", {rank}); }, {"expected a name"});
    refused([&] { coordinator.form_process_set("a", {rank, 3}); }, {"a rank that does not exist"});
    refused([&] { coordinator.leave_process_set(77); }, {"77 is not registered"});
    refused([&] { coordinator.leave_process_set(0); }, {"the set of all ranks"});
    sum(coordinator, "x", 1);
  });
}

TEST(CoordinatorRefusals, TensorsOnGpus) {
  NcclWorld gpus(1);
  with_gpus(gpus, {}, 1, [&](int, RankParts& parts, Submitter& gpu) {
    float value = 1;
    const Request plain = make_request("x", {1});
    const auto expect_refusal = [&](Code code, const std::string& text, const auto& change) {
      auto operation = gpu.operation(plain, &value, &value);
      change(operation->request);
      expect_error(status_of([&] { parts.coordinator->submit(operation); }), code, {text});
    };
    expect_refusal(Code::kUnsupported, "Adasum", [](auto& r) { r.op = ReduceOp::kAdasum; });
    expect_refusal(Code::kUnsupported, "int16 (expected", [](auto& r) {
      r.tensors[0].dtype = DataType::kInt16;
    });
    expect_refusal(Code::kInvalidArgument, "bfloat16 for float64 (expected float32)", [](auto& r) {
      r.wire = WireFormat::kBFloat16;
      r.tensors[0].dtype = DataType::kFloat64;
    });
    expect_refusal(
        Code::kUnsupported,
        "wire format random (expected blocks, the largest elements, or a format of 8 to 32 bits); "
        "use mstopk, or set AIACC_GPU_ENGINE=staged for it",
        [](auto& r) {
          r.wire = WireFormat::kRandom;
          r.wire_detail = 10'000;
        });
    expect_refusal(Code::kUnsupported,
                   "wire format largest by mode=reference (expected tracked or exact); leave the "
                   "mode out, or set AIACC_GPU_ENGINE=staged for it",
                   [](auto& r) {
                     r.wire = WireFormat::kLargest;
                     r.wire_detail = 10'000 + Coding::kReference;
                   });
    expect_refusal(
        Code::kInvalidArgument, "device 1 (expected 0..0", [](auto& r) { r.device = 1; });
    const Handle handle = gpu.submit(plain, &value, &value);
    const auto operation = parts.coordinator->wait(handle);
    gpus.cuda.set_capturing(gpu.stream(), true);
    expect_refusal(Code::kUnsupported, "torch.cuda.graph", [](auto&) {});
    expect_error(
        status_of([&] { parts.coordinator->device_path().order_after(*operation, gpu.stream()); }),
        Code::kUnsupported);
    gpus.cuda.set_capturing(gpu.stream(), false);
    gpu.finish(handle);
    EXPECT_EQ(1, value);
  });
}

}  // namespace
}  // namespace aiacc
