#include "csrc/bindings/tensorflow/node_calls.h"

#include <string>

#include <gtest/gtest.h>

namespace aiacc::tensorflow {
namespace {

void expect(const std::string& node,
            const std::string& automatic,
            const std::string& given,
            int loops) {
  const NodeCalls calls = calls_of(node);
  EXPECT_EQ(calls.automatic, automatic) << node;
  EXPECT_EQ(calls.given, given) << node;
  EXPECT_EQ(calls.loops, loops) << node;
}

TEST(NodeCalls, PythonCallsTheFunctionOfTheNode) {
  expect("leaf.allreduce", "", "", 0);
  expect("while/body/_5/while/leaf.allreduce_1", "", "", 0);
  expect("", "", "", 0);
}

TEST(NodeCalls, EachCallIsNamed) {
  expect("aiacc_call.0.0.f.g.1/PartitionedCall/g.allreduce", "@f.g.1", "", 0);
  expect(
      "cond/then/_2/cond/aiacc_call.1.3.f.cond_true.g.2/StatefulPartitionedCall/while/body/_7/"
      "while/aiacc_call.1.0.g.while_body.h.1/PartitionedCall_4/h.allreduce",
      "@f.cond_true.g.2@g.while_body.h.1",
      ".3",
      2);
}

TEST(NodeCalls, GivenNamesHaveTheNumberOfTheInnerCallFirst) {
  expect("aiacc_call.0.1.f.g.1/PartitionedCall/aiacc_call.0.2.g.h.2/PartitionedCall/h.allreduce",
         "@f.g.1@g.h.2",
         ".2.1",
         0);
}

TEST(NodeCalls, OtherScopesAreNone) {
  for (const char* scope :
       {"aiacc_call.", "aiacc_call.1", "aiacc_call.1.2", "my.aiacc_call.1.2.f"}) {
    const std::string call = std::string(scope) + "/PartitionedCall";
    expect(call + "/f.allreduce", '@' + call, "", kUnknownLoops);
  }
}

TEST(NodeCalls, CallsWithoutAScopeHaveTensorFlowsName) {
  expect(
      "a/StatefulPartitionedCall_2/g.allreduce", "@a/StatefulPartitionedCall_2", "", kUnknownLoops);
  expect(
      "aiacc_call.1.0.f.g.1/PartitionedCall/b/PartitionedCall_1/aiacc_call.1.1.h.i.1/"
      "PartitionedCall/i.allreduce",
      "@f.g.1@b/PartitionedCall_1@h.i.1",
      ".1",
      kUnknownLoops);
}

}  // namespace
}  // namespace aiacc::tensorflow
