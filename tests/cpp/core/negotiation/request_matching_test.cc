#include "csrc/core/negotiation/request_matching.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

/// All ranks' requests, in order.
Status validate(const std::vector<Request>& requests) {
  std::vector<int> ranks(requests.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return aiacc::validate(requests, ranks);
}

struct Disagreement {
  Request request;
  std::function<void(Request&)> change;
  std::string what;
  std::string ours;
  std::string theirs;
};

std::vector<Disagreement> disagreements() {
  const Request base = make_request("w", {2, 3});
  const Request gather = make_request("w", OpKind::kAllgather, {2, 3});
  const Request exchange = make_request("w", OpKind::kAlltoall, {2, 3});
  Request group = base;
  group.tensors = {group.tensors[0], {DataType::kInt8, {4}}, {DataType::kFloat64, {5}}};
  Request coded = base;
  coded.wire = WireFormat::kLargest;
  coded.wire_detail = 10'000;
  const std::string rows = "; all ranks must agree on it (only the first dimension may differ)";
  const std::string size =
      "; all ranks must agree on it (elements are of equal size, and not of one dtype)";
  const TensorSpec int8{DataType::kInt8, {1}};
  return {
      {base, [](auto& r) { r.kind = OpKind::kBroadcast; }, "operation", "allreduce", "broadcast"},
      {base,
       [](auto& r) { r.tensors[0].dtype = DataType::kFloat16; },
       "dtype",
       "float32",
       "float16"},
      {base, [](auto& r) { r.tensors[0].shape = {3, 2}; }, "shape", "[2, 3]", "[3, 2]"},
      {base, [](auto& r) { r.tensors[0].shape = {6}; }, "shape", "[2, 3]", "[6]"},
      {base, [](auto& r) { r.tensors[0].shape = {2, 3, 1}; }, "shape", "[2, 3]", "[2, 3, 1]"},
      {base, [](auto& r) { r.op = ReduceOp::kMax; }, "reduction op", "Sum", "Max"},
      {base, [](auto& r) { r.root = 2; }, "root rank", "0", "2"},
      {base, [](auto& r) { r.prescale = 0.5; }, "prescale_factor", "1", "0.5"},
      {base, [](auto& r) { r.postscale = 2; }, "postscale_factor", "1", "2"},
      {base, [](auto& r) { r.prescale = 1 + 1e-9; }, "prescale_factor", "1", "1.000000001"},
      {base, [](auto& r) { r.prescale += 0x1p-52; }, "prescale_factor", "1", "1.0000000000000002"},
      {base, [](auto& r) { r.prescale = std::nan(""); }, "prescale_factor", "1", "nan"},
      {base, [](auto& r) { r.postscale = std::nan(""); }, "postscale_factor", "1", "nan"},
      {base, [=](auto& r) { r.tensors = {r.tensors[0], int8}; }, "number of tensors", "1", "2"},
      {group, [=](auto& r) { r.tensors.push_back(int8); }, "number of tensors", "3", "4"},
      {group, [=](auto& r) { r.tensors[2].shape = {6}; }, "shape of tensor 2", "[5]", "[6]"},
      {group, [=](auto& r) { r.tensors[1] = int8; }, "shape of tensor 1", "[4]", "[1]"},
      {group, [=](auto& r) { r.tensors[2] = int8; }, "dtype of tensor 2", "float64", "int8"},
      {base, [](auto& r) { r.numbers = {0, 2}; }, "process set", "[]", "[0, 2]"},
      {base, [](auto& r) { r.device = 1; }, "device", "cpu", "gpu 1"},
      {base, [](auto& r) { r.wire = WireFormat::kBFloat16; }, "wire format", "tensor", "bfloat16"},
      {coded, [](auto& r) { ++r.wire_detail; }, "wire format", "largest 10000", "largest 10001"},
      {gather, [](auto& r) { r.tensors[0].shape = {2, 4}; }, "shape", "[2, 3]", "[2, 4]" + rows},
      {gather,
       [](auto& r) { r.tensors[0].shape = {2, 3, 1}; },
       "shape",
       "[2, 3]",
       "[2, 3, 1]" + rows},
      {exchange, [](auto& r) { r.tensors[0].shape = {2, 4}; }, "shape", "[2, 3]", "[2, 4]" + rows},
      {gather, [](auto& r) { r.prescale = 1.5; }, "dtype (a digest)", "1", "1.5" + size},
  };
}

TEST(RequestMatching, ADisagreementNamesTensorRanksAndBothValues) {
  for (const Disagreement& disagreement : disagreements()) {
    Request changed = disagreement.request;
    disagreement.change(changed);
    EXPECT_FALSE(same_signature(disagreement.request, changed)) << disagreement.theirs;
    for (std::size_t odd = 1; odd < 4; ++odd) {
      std::vector<Request> requests(4, disagreement.request);
      EXPECT_TRUE(validate(requests).ok());
      requests[odd] = changed;
      const Status status = validate(requests);
      EXPECT_EQ(status.code(), Code::kMismatch);
      const std::string submitted = " submitted " + disagreement.what + " ";
      const std::string text = "[negotiation] tensor 'w': rank 0" + submitted + disagreement.ours +
                               ", rank " + std::to_string(odd) + submitted + disagreement.theirs;
      EXPECT_EQ(status.message().substr(0, text.size()), text);
      EXPECT_NE(status.message().find("; all ranks must agree on it"), std::string::npos);
    }
    EXPECT_TRUE(same_signature(changed, changed)) << disagreement.theirs;
    EXPECT_TRUE(validate({changed, changed}).ok());
  }
}

/// What ranks may have of their own, rows and splits too, is in coordinator_random_test.cc.
TEST(RequestMatching, SignaturesHaveNeitherNamesNorNumbersOfGpus) {
  Request one = make_request("x");
  one.device = 0;
  Request other = make_request("other");
  other.device = 3;
  EXPECT_TRUE(same_signature(one, other));
  other.process_set = 4;
  EXPECT_FALSE(same_signature(one, other));
}

}  // namespace
}  // namespace aiacc
