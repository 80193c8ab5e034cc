#include "csrc/planning/unit_size.h"

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(UnitSize, IsSmallOnOneHostAndWhereNothingIsKnown) {
  EXPECT_EQ(kNearUnitBytes, unit_bytes_for(0));
  EXPECT_EQ(kNearUnitBytes, unit_bytes_for(20e-6));
}

TEST(UnitSize, GrowsWhereHostsAreFarFromEachOther) {
  EXPECT_EQ(kNearUnitBytes, unit_bytes_for(0.99 * kFarRoundTripS));
  EXPECT_EQ(kFarUnitBytes, unit_bytes_for(kFarRoundTripS));
  EXPECT_EQ(kFarUnitBytes, unit_bytes_for(0.2));
}

}  // namespace
}  // namespace aiacc
