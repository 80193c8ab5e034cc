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
  const char* what;
  std::function<void(Request&)> change;
  std::string ours;
  std::string theirs;
};

std::vector<Disagreement> disagreements() {
  return {
      {"operation", [](Request& r) { r.kind = OpKind::kBroadcast; }, "allreduce", "broadcast"},
      {"dtype", [](Request& r) { r.dtype = DataType::kFloat16; }, "float32", "float16"},
      {"shape", [](Request& r) { r.shape = {3, 2}; }, "[2, 3]", "[3, 2]"},
      {"shape", [](Request& r) { r.shape = {6}; }, "[2, 3]", "[6]"},
      {"reduction op", [](Request& r) { r.op = ReduceOp::kMax; }, "Sum", "Max"},
      {"root rank", [](Request& r) { r.root = 2; }, "0", "2"},
      {"prescale_factor", [](Request& r) { r.prescale = 0.5; }, "1,", "0.5;"},
      {"postscale_factor", [](Request& r) { r.postscale = 2; }, "1,", "2;"},
      {"number of tensors", [](Request& r) { r.more.resize(1); }, "1", "2"},
      {"process set", [](Request& r) { r.numbers = {0, 2}; }, "[]", "[0, 2]"},
      {"device", [](Request& r) { r.device = 1; }, "cpu", "gpu 1"},
      {"wire format", [](Request& r) { r.wire = WireFormat::kBFloat16; }, "tensor", "bfloat16"},
  };
}

TEST(RequestMatching, EqualRequestsFit) {
  EXPECT_TRUE(validate({make_request("x")}).ok());
  EXPECT_TRUE(validate({make_request("x"), make_request("x"), make_request("x")}).ok());
}

TEST(RequestMatching, ADisagreementNamesTensorRanksAndBothValues) {
  for (const Disagreement& disagreement : disagreements()) {
    for (std::size_t odd = 1; odd < 4; ++odd) {
      std::vector<Request> requests(4, make_request("conv1.weight", {2, 3}));
      disagreement.change(requests[odd]);
      const Status status = validate(requests);
      EXPECT_EQ(status.code(), Code::kMismatch) << disagreement.what;
      for (const std::string& part :
           {std::string("'conv1.weight'"),
            std::string("rank 0 submitted ") + disagreement.what + " " + disagreement.ours,
            "rank " + std::to_string(odd) + " submitted " + disagreement.what + " " +
                disagreement.theirs}) {
        EXPECT_NE(status.message().find(part), std::string::npos)
            << "'" << part << "' is not in: " << status.message();
      }
    }
  }
}

TEST(RequestMatching, CodesThatDifferAreToldWithTheirNumbers) {
  std::vector<Request> requests(3, make_request("x"));
  for (Request& request : requests) {
    request.wire = WireFormat::kLargest;
    request.wire_detail = 10'000;
  }
  EXPECT_TRUE(validate(requests).ok());
  EXPECT_TRUE(same_signature(requests[0], requests[2]));
  requests[2].wire_detail = 10'001;
  const Status status = validate(requests);
  EXPECT_EQ(Code::kMismatch, status.code());
  EXPECT_NE(std::string::npos,
            status.message().find("rank 0 submitted wire format largest 10000, rank 2 submitted "
                                  "wire format largest 10001"))
      << status.message();
  EXPECT_FALSE(same_signature(requests[0], requests[2]));
}

TEST(RequestMatching, ScalesThatDifferALittleAreToldApart) {
  std::vector<Request> requests(2, make_request("x"));
  requests[0].prescale = 1.0 / 1024;
  requests[1].prescale = 1.0 / 1024 + 1e-9;
  const std::string text = validate(requests).message();
  const auto first = text.find("prescale_factor ");
  const auto second = text.rfind("prescale_factor ");
  EXPECT_NE(text.substr(first, text.find(',') - first),
            text.substr(second, text.find(';') - second));
}

TEST(RequestMatching, NanIsTheSameFactorAsNan) {
  std::vector<Request> requests(2, make_request("x"));
  for (double Request::* factor : {&Request::prescale, &Request::postscale}) {
    requests[0].*factor = std::nan("");
    EXPECT_EQ(validate(requests).code(), Code::kMismatch);
    EXPECT_FALSE(same_signature(requests[0], requests[1]));
    requests[1].*factor = -std::nan("1");
    EXPECT_TRUE(validate(requests).ok());
    EXPECT_TRUE(same_signature(requests[0], requests[1]));
  }
}

TEST(RequestMatching, OnlyTheFirstDimensionOfAnAllgatherMayDiffer) {
  std::vector<Request> requests(3, make_request("g", OpKind::kAllgather, {2, 3}));
  requests[1].shape = {0, 3};
  EXPECT_TRUE(validate(requests).ok());
  requests[2].shape = {2, 4};
  const Status status = validate(requests);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("only the first dimension may differ"), std::string::npos);
  requests[2].shape = {2, 3, 1};
  EXPECT_EQ(validate(requests).code(), Code::kMismatch);
}

TEST(RequestMatching, ADisagreementInAGroupNamesTheTensor) {
  std::vector<Request> requests(3, make_request("g", {2, 3}));
  for (Request& request : requests) {
    request.more = {{DataType::kInt8, {4}}, {DataType::kFloat64, {5}}};
  }
  EXPECT_TRUE(validate(requests).ok());
  requests[2].more[1].shape = {6};
  const std::string text = validate(requests).message();
  EXPECT_NE(text.find("rank 0 submitted shape of tensor 2 [5], rank 2 submitted"),
            std::string::npos)
      << text;
  requests[1].more[0].dtype = DataType::kUInt8;
  EXPECT_NE(validate(requests).message().find("dtype of tensor 1 int8"), std::string::npos);
}

TEST(RequestMatching, SplitsAndFirstDimensionsOfAnAlltoallMayDiffer) {
  std::vector<Request> requests(2, make_request("a", OpKind::kAlltoall, {2, 3}));
  requests[0].numbers = {1, 1};
  requests[1].numbers = {0, 5};
  requests[1].shape = {6, 3};
  EXPECT_TRUE(validate(requests).ok());
  requests[1].shape = {6, 4};
  EXPECT_EQ(validate(requests).code(), Code::kMismatch);
}

TEST(RequestMatching, RanksOfAProcessSetAreNamedByTheirNumbers) {
  std::vector<Request> requests(2, make_request("x"));
  for (Request& request : requests) {
    request.process_set = 4;
  }
  requests[1].shape = {5};
  const std::string text = aiacc::validate(requests, {3, 7}).message();
  for (const char* part : {"'x (process set 4)'", "rank 3 submitted", "rank 7 submitted"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(RequestMatching, GpusMayHaveDifferentNumbers) {
  std::vector<Request> requests(2, make_request("x"));
  requests[0].device = 0;
  requests[1].device = 1;
  EXPECT_TRUE(validate(requests).ok());
}

TEST(RequestMatching, ShapesAsText) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({7}), "[7]");
  EXPECT_EQ(shape_text({2, 3}), "[2, 3]");
}

}  // namespace
}  // namespace aiacc
