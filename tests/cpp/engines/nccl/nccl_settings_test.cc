#include "csrc/engines/nccl/nccl_settings.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/coding.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  expect_error({Code::kUnsupported, text}, Code::kUnsupported, parts);
}

constexpr int kOld = nccl_version_code(2, 27, 7);
constexpr int kNew = nccl_version_code(2, 31, 2);

TEST(NcclSettings, SeveralLanesNeedTheOrderOfLaunches) {
  EXPECT_EQ("", launch_order_problem(kOld, 1, "", true));
  EXPECT_EQ("", launch_order_problem(kOld, 1, "0", true));
  EXPECT_EQ("", launch_order_problem(kOld, 2, "", false));
  EXPECT_EQ("", launch_order_problem(kOld, 2, "1", true));
  EXPECT_EQ("", launch_order_problem(kNew, 2, "", true));
  EXPECT_NE("", launch_order_problem(kOld, 2, "", true));
  EXPECT_NE("", launch_order_problem(kOld, 2, "0", false));
  EXPECT_NE("", launch_order_problem(kNew, 2, "0", false)) << "the variable wins";
  expect_parts(launch_order_problem(kOld, 4, "", true),
               {"4 lanes", "2.27.7", "NCCL_LAUNCH_ORDER_IMPLICIT", "AIACC_GPU_LANES=1"});
}

TEST(NcclSettings, RanksMayShareAGpuIfNcclIsToldAndCan) {
  EXPECT_FALSE(shares_gpus(kNew, ""));
  EXPECT_FALSE(shares_gpus(kNew, "0"));
  EXPECT_TRUE(shares_gpus(kNew, "1"));
  EXPECT_TRUE(shares_gpus(nccl_version_code(2, 30, 0), "1"));
  EXPECT_FALSE(shares_gpus(kOld, "1"));
}

TEST(NcclSettings, ACommunicatorOfALane) {
  const NcclConfig one = communicator_settings(kNew, 1, 132);
  EXPECT_EQ(0, one.blocking);
  EXPECT_EQ(0, one.split_share);
  EXPECT_EQ(33, one.max_ctas);
  EXPECT_EQ(kNcclUndefined, one.launch_order_implicit);
  const NcclConfig four = communicator_settings(kNew, 4, 132);
  EXPECT_EQ(8, four.max_ctas);
  EXPECT_EQ(1, four.launch_order_implicit);
  EXPECT_EQ(kNcclUndefined, communicator_settings(kOld, 4, 132).launch_order_implicit);
  EXPECT_EQ(1, communicator_settings(kNew, 64, 40).max_ctas);
}

TEST(NcclSettings, NarrowFloatsOnTheWire) {
  EXPECT_EQ(kNcclBfloat16, nccl_type_of(DataType::kFloat32, WireFormat::kBFloat16));
  EXPECT_EQ(kNcclFloat8e5m2, nccl_type_of(DataType::kFloat32, WireFormat::kFloat8E5M2));
  DeviceReduction reduction;
  reduction.wire = WireFormat::kBFloat16;
  EXPECT_EQ("", nccl_refusal(reduction, 7));
  reduction.wire = WireFormat::kFloat8E4M3;
  EXPECT_EQ("", nccl_refusal(reduction, 9));
  expect_parts(nccl_refusal(reduction, 8), {"float8_e4m3", "compute capability 8", "expected 9"});
}

TEST(NcclSettings, CodesOfBlocksAndTheLargest) {
  DeviceReduction reduction;
  for (const WireFormat wire : {WireFormat::kInt8Blocks,
                                WireFormat::kInt4Blocks,
                                WireFormat::kFloat8Blocks,
                                WireFormat::kLargest}) {
    reduction.wire = wire;
    EXPECT_EQ("", nccl_refusal(reduction, 7));
  }
  reduction.wire_detail = 10'000 + Coding::kExact;
  EXPECT_EQ("", nccl_refusal(reduction, 7));
  reduction.wire_detail = 10'000 + Coding::kReference;
  expect_parts(nccl_refusal(reduction, 9), {"largest by mode=reference", "expected tracked"});
  reduction.wire = WireFormat::kRandom;
  EXPECT_NE("", nccl_refusal(reduction, 9));
}

TEST(NcclSettings, AnAlgorithmIsAWish) {
  EXPECT_STREQ("ring", call_settings(Algorithm::kRing).algorithms);
  EXPECT_STREQ("tree", call_settings(Algorithm::kTree).algorithms);
  EXPECT_EQ(0, call_settings(Algorithm::kTree).force_algorithms);
}

TEST(NcclSettings, VersionsThatChooseTheAlgorithmThemselves) {
  EXPECT_EQ("", algorithm_problem(nccl_version_code(2, 31, 0)));
  expect_parts(algorithm_problem(nccl_version_code(2, 30, 7)),
               {"NCCL 2.30.7", "expected 2.31", "update it"});
}

TEST(NcclSettings, TypesAndOperations) {
  EXPECT_EQ(kNcclBfloat16, nccl_type_of(DataType::kBFloat16));
  EXPECT_EQ(kNcclUint8, nccl_type_of(DataType::kBool));
  EXPECT_EQ(kNcclSum, nccl_op_of(DataType::kUInt8, ReduceOp::kSum));
  EXPECT_EQ(kNcclMax, nccl_op_of(DataType::kBool, ReduceOp::kSum));
  EXPECT_EQ(kNcclMin, nccl_op_of(DataType::kBool, ReduceOp::kProduct));
  for (int type = 0; type < kDataTypes; ++type) {
    const auto dtype = static_cast<DataType>(type);
    const bool can = nccl_refusal({dtype, ReduceOp::kSum}, 7).empty();
    EXPECT_EQ(can, dtype != DataType::kInt16 && dtype != DataType::kUInt16) << name_of(dtype);
    if (!can) {
      EXPECT_THROW(nccl_type_of(dtype), Error);
    }
  }
  EXPECT_NE("", nccl_refusal({DataType::kFloat32, ReduceOp::kAdasum}, 9));
}

}  // namespace
}  // namespace aiacc
