#include "csrc/core/dispatch/zero_answers.h"

#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

#include "tests/cpp/support/process.h"
#include "tests/cpp/support/requests.h"

namespace aiacc {
namespace {

/// Who adds them answers the other ranks, who would take it for frozen.
TEST(ZeroAnswers, AreNotClearedByWhoAddsThem) {
  constexpr std::int64_t kCount = std::int64_t{1} << 28;
  ZeroAnswers zeros;
  Response response;
  response.zeros = std::make_shared<const Request>(make_request("x", {kCount}));
  const std::size_t before = resident_memory();
  Operation* operation = zeros.add(response);
  ASSERT_NE(operation, nullptr);
  EXPECT_TRUE(operation->zeros);
  EXPECT_LT(resident_memory() - before, sizeof(float) * kCount / 4);  // sanitizers take an eighth
  zeros.remove(operation);
  response.zeros = std::make_shared<const Request>(make_request("x", {0}));
  EXPECT_EQ(zeros.add(response), nullptr);
}

}  // namespace
}  // namespace aiacc
