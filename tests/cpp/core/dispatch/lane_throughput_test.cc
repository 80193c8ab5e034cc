#include "csrc/core/dispatch/lane_throughput.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>

#include <gtest/gtest.h>

#include "tests/cpp/support/fakes/fake_engine.h"

namespace aiacc {
namespace {

constexpr std::uint64_t kUnit = 1 << 20;
constexpr int kLanes = 4;

/// Says what a test wants it to say about the network.
class WatchedEngine : public FakeEngine {
 public:
  WatchedEngine() : FakeEngine(std::make_shared<FakeHub>(1, kLanes), 0) {}
  double send_busy_s(int lane) const override {
    return sent_s.at(static_cast<std::size_t>(lane)).load();
  }
  std::array<std::atomic<double>, kLanes> sent_s{};
};

Parameters parameters_of(std::uint32_t epoch) {
  Parameters parameters;
  parameters.epoch = epoch;
  parameters.unit_bytes = kUnit;
  parameters.lanes = kLanes;
  return parameters;
}

class LaneThroughputTest : public testing::Test {
 protected:
  LaneThroughputTest() { EXPECT_FALSE(suggest()); }

  std::optional<LaneWeights> suggest(std::uint32_t epoch = 0) {
    return throughput_.suggest(parameters_of(epoch));
  }
  /// A window's worth of units; those of lane 1 take `slow` times as long as the others'.
  void work(int slow, std::uint64_t bytes = kUnit, double busy = 1) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto taken = LaneThroughput::kWindow / 20 * (lane == 1 ? slow : 1);
      for (int i = 0; i < 20; ++i) {
        throughput_.note(lane, bytes, taken);
      }
      auto& sent_s = engine_.sent_s[static_cast<std::size_t>(lane)];
      sent_s = sent_s + 20 * busy * std::chrono::duration<double>(taken).count();
    }
  }

  WatchedEngine engine_;
  LaneThroughput throughput_{engine_};
};

TEST_F(LaneThroughputTest, SuggestsWhenASecondLookConfirmsTheFirst) {
  work(4);
  EXPECT_FALSE(suggest());
  EXPECT_FALSE(suggest());  // nothing new
  work(4);
  const auto weights = suggest();
  ASSERT_TRUE(weights);
  EXPECT_EQ((*weights)[0], kFullWeight);
  EXPECT_EQ((*weights)[1], kFullWeight / 4);
}

TEST_F(LaneThroughputTest, OneOddWindowAThreadThatIsSlowAndSmallUnitsChangeNothing) {
  for (const int why : {0, 1, 2}) {
    for (int i = 0; i < 10; ++i) {
      work(why == 0 && i % 2 == 1 ? 1 : 4, why == 2 ? kUnit / 2 : kUnit, why == 1 ? 0.3 : 1);
      EXPECT_FALSE(suggest()) << why;
    }
  }
}

TEST_F(LaneThroughputTest, NoLaneIsJudgedBeforeAllHaveWorked) {
  for (int i = 0; i < 100; ++i) {
    for (const int lane : {0, 1, 2}) {
      throughput_.note(lane, kUnit, LaneThroughput::kWindow * (lane == 1 ? 9 : 1));
      engine_.sent_s[static_cast<std::size_t>(lane)] = 1000.0 * i;
    }
    EXPECT_FALSE(suggest());
  }
}

TEST_F(LaneThroughputTest, ANewEpochIsMeasuredAnew) {
  work(4);
  EXPECT_FALSE(suggest());
  work(4);
  EXPECT_FALSE(suggest(1));
  work(4);
  EXPECT_FALSE(suggest(1));
  work(4);
  EXPECT_TRUE(suggest(1));
}

}  // namespace
}  // namespace aiacc
