#include "csrc/engines/staged/device_mover.h"

#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/engines/staged/pinned_slots.h"
#include "tests/cpp/support/fakes/fake_cuda.h"
#include "tests/cpp/support/fakes/fake_engine.h"

namespace aiacc {
namespace {

std::byte* bytes_of(std::vector<float>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

StagedCopy copy_of(std::vector<float>& values, std::size_t at) {
  return {reinterpret_cast<std::uintptr_t>(values.data()),
          at * sizeof(float),
          values.size() * sizeof(float)};
}

/// The memory of the device is the host's.
class DeviceMoverTest : public testing::Test {
 protected:
  ~DeviceMoverTest() override { EXPECT_EQ(cuda_.misuses(), 0); }

  FakeCuda cuda_;
  std::shared_ptr<Device> device_ = Device::open(cuda_.driver(), 0);
  Device::Scope scope_{*device_};
};

std::vector<float> numbers_from(float first, std::size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

/// Of 1000 numbers only 100 to 299 and 500 to 899 are there; so are others of the output.
TEST_F(DeviceMoverTest, RangesAreCutAsPiecesLie) {
  std::vector<float> low = numbers_from(100, 200);
  std::vector<float> middle = numbers_from(500, 50);
  std::vector<float> high = numbers_from(550, 350);
  std::vector<float> output_low(150, -1);
  std::vector<float> output_high(400, -1);
  std::vector<float> slot(1000, -1);
  DeviceMover mover(device_);
  mover.begin({copy_of(low, 100), copy_of(middle, 500), copy_of(high, 550)},
              {copy_of(output_low, 0), copy_of(output_high, 600)},
              DataType::kFloat32,
              2);
  const std::vector<std::size_t> ends = {0, 100, 101, 320, 520, 560, 700, 1000};
  for (std::size_t i = 1; i < ends.size(); ++i) {
    const std::size_t begin = ends[i - 1] * sizeof(float);
    const std::size_t bytes = ends[i] * sizeof(float) - begin;
    const auto ticket = static_cast<int>(i % BlockMover::kTickets);
    mover.start_in(ticket, begin, bytes, bytes_of(slot) + begin);
    mover.finish_in(ticket);
    mover.start_out(ticket, begin, bytes, bytes_of(slot) + begin);
    mover.finish_out(ticket);
  }
  for (std::size_t i = 0; i < slot.size(); ++i) {
    const bool there = (i >= 100 && i < 300) || (i >= 500 && i < 900);
    ASSERT_EQ(slot[i], there ? 2 * static_cast<float>(i) : 0) << i;
  }
  EXPECT_EQ(output_low, std::vector<float>(slot.begin(), slot.begin() + 150));
  EXPECT_EQ(output_high, std::vector<float>(slot.begin() + 600, slot.end()));
}

TEST_F(DeviceMoverTest, TicketsOverlap) {
  std::vector<float> input = numbers_from(0, 400);
  std::vector<float> output(400);
  std::vector<float> slot(400);
  DeviceMover mover(device_);
  mover.begin({copy_of(input, 0)}, {copy_of(output, 0)}, DataType::kFloat32, 1);
  const std::size_t bytes = 100 * sizeof(float);
  for (std::size_t i = 0; i < 4; ++i) {
    mover.start_in(static_cast<int>(i), i * bytes, bytes, bytes_of(slot) + i * bytes);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    mover.finish_in(static_cast<int>(i));
    mover.start_out(static_cast<int>(i), i * bytes, bytes / 2, bytes_of(slot) + i * bytes);
    mover.start_out(static_cast<int>(i),
                    i * bytes + bytes / 2,
                    bytes / 2,
                    bytes_of(slot) + i * bytes + bytes / 2);
  }
  for (int i = 0; i < 4; ++i) {
    mover.finish_out(i);
  }
  EXPECT_EQ(output, input);
}

TEST_F(DeviceMoverTest, StopWaitsForCopies) {
  std::vector<float> input = numbers_from(0, 400);
  std::vector<float> slot(400);
  DeviceMover mover(device_);
  mover.begin({copy_of(input, 0)}, {}, DataType::kFloat32, 1);
  cuda_.hold();
  mover.start_in(0, 0, 400 * sizeof(float), bytes_of(slot));
  std::thread releaser([&] { cuda_.release(); });
  mover.stop();
  EXPECT_EQ(slot, input);
  releaser.join();
}

TEST_F(DeviceMoverTest, AWaitForInputsCanBeCancelled) {
  DeviceMover mover(device_);
  Cancellation cancellation;
  mover.await_inputs(cancellation);
  cuda_.hold();
  cancellation.set(Status(Code::kPeerLost, "enough"));
  EXPECT_THROW(mover.await_inputs(cancellation), Error);
  cuda_.release();
  cuda_.drain();
}

TEST_F(DeviceMoverTest, ABrokenDeviceEndsWaits) {
  std::vector<float> input = numbers_from(0, 400);
  std::vector<float> slot(400);
  DeviceMover mover(device_);
  mover.begin({copy_of(input, 0)}, {}, DataType::kFloat32, 1);
  mover.start_in(0, 0, 400 * sizeof(float), bytes_of(slot));
  cuda_.break_with(700);
  EXPECT_THROW(mover.finish_in(0), Error);
  mover.stop();
}

/// With memory that begins and ends with a page.
class EngineWithSlots : public FakeEngine {
 public:
  EngineWithSlots() : FakeEngine(std::make_shared<FakeHub>(1, 1), 0) {}
  SharedSlots slots(int) const override { return slots_; }

  SharedSlots slots_;
};

class PinnedSlotsTest : public DeviceMoverTest {
 protected:
  static constexpr std::size_t kPage = 4096;
  PinnedSlotsTest() {
    auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    address = (address + kPage - 1) / kPage * kPage;
    engine_.slots_ = {reinterpret_cast<std::byte*>(address), 2 * kPage};
  }

  std::vector<std::byte> memory_{3 * kPage};
  EngineWithSlots engine_;
};

TEST_F(PinnedSlotsTest, ArePinnedUntilTheEnd) {
  std::optional<PinnedSlots> slots(engine_);
  EXPECT_EQ(cuda_.registered(), 0U);
  EXPECT_TRUE(slots->usable(device_, 0));
  EXPECT_TRUE(slots->usable(device_, 1));
  EXPECT_EQ(cuda_.registered(), 1U);
  slots.reset();
  EXPECT_EQ(cuda_.registered(), 0U);
}

TEST_F(PinnedSlotsTest, TheDriverIsAskedOnce) {
  cuda_.refuse_to_register(1);
  PinnedSlots slots(engine_);
  EXPECT_FALSE(slots.usable(device_, 0));
  EXPECT_FALSE(slots.usable(device_, 0));
  EXPECT_EQ(cuda_.registered(), 0U);
}

TEST_F(PinnedSlotsTest, NothingIsAskedForAnEngineWithoutSlots) {
  engine_.slots_ = {};
  const int calls = cuda_.synchronising_calls();
  PinnedSlots slots(engine_);
  EXPECT_FALSE(slots.usable(device_, 0));
  EXPECT_EQ(cuda_.synchronising_calls(), calls);
}

}  // namespace
}  // namespace aiacc
