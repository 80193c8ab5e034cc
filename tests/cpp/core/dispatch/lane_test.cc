#include "csrc/core/dispatch/lane.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/gate.h"

namespace aiacc {
namespace {

/// That of who helps.
Operation& own() {
  static Operation operation;
  return operation;
}

Unit unit_of(std::uint64_t seq, Operation& operation = own()) {
  Unit unit;
  unit.plan.seq = seq;
  unit.pieces = {{&operation, 0}};
  return unit;
}

void push(Lane& lane, Unit unit, bool notify) { lane.push(unit, notify); }

void help(Lane& lane) { lane.help(own()); }

bool pass(Gate& gate) {
  gate.pass();
  return true;
}

TEST(Lane, RunsUnitsInOrderOneAtATime) {
  std::vector<std::uint64_t> order;  // guarded by the lane itself: never two at once
  std::atomic<int> inside{0};
  Lane lane("test", [&](Unit& unit, PackBuffer&) {
    EXPECT_EQ(inside.fetch_add(1), 0);
    order.push_back(unit.plan.seq);
    inside.fetch_sub(1);
    return true;
  });
  std::atomic<bool> stop{false};
  std::vector<std::thread> helpers;
  for (int i = 0; i < 3; ++i) {
    helpers.emplace_back([&] {
      while (!stop.load()) {
        help(lane);
      }
    });
  }
  for (std::uint64_t seq = 0; seq < 2000; ++seq) {
    push(lane, unit_of(seq), seq % 2 == 0);
  }
  EXPECT_TRUE(lane.quiesce(never()));
  stop.store(true);
  for (std::thread& helper : helpers) {
    helper.join();
  }
  ASSERT_EQ(order.size(), 2000U);
  for (std::uint64_t seq = 0; seq < 2000; ++seq) {
    ASSERT_EQ(order[seq], seq);
  }
}

/// Whoever helped then would wait for the gate.
TEST(Lane, HelpReturnsAtOnceWhileAnotherThreadRunsIt) {
  Gate gate(false);
  Lane lane("test", [&](Unit&, PackBuffer&) { return pass(gate); });
  push(lane, unit_of(0), true);
  gate.await(1);
  help(lane);
  gate.open();
  EXPECT_TRUE(lane.quiesce(never()));
}

TEST(Lane, AUnitPushedWhileAnotherRunsIsNotForgotten) {
  Gate gate(false);
  std::atomic<int> ran{0};
  Lane lane("test", [&](Unit&, PackBuffer&) {
    gate.pass();
    ran.fetch_add(1);
    return true;
  });
  push(lane, unit_of(0), false);
  std::thread helper([&] { help(lane); });
  gate.await(1);
  push(lane, unit_of(1), true);
  push(lane, unit_of(2), false);
  gate.open();
  EXPECT_TRUE(lane.quiesce(never()));
  EXPECT_EQ(ran.load(), 3);
  helper.join();
}

/// What is behind a unit of others may have to wait for ranks that the helper does not wait for.
TEST(Lane, AHelperRunsUnitsOfItsOwnOperationOnly) {
  Operation others;
  const auto self = std::this_thread::get_id();
  for (const Lane::Prepare& prepare : {Lane::Prepare(), Lane::Prepare([](const Unit&) {})}) {
    std::vector<bool> here;
    Lane lane(
        "test",
        [&](Unit&, PackBuffer&) {
          here.push_back(std::this_thread::get_id() == self);
          return true;
        },
        prepare);
    for (Operation* operation : {&own(), &own(), &others, &own()}) {
      push(lane, unit_of(0, *operation), false);
    }
    help(lane);
    EXPECT_TRUE(lane.quiesce(never()));
    EXPECT_EQ(here, (std::vector<bool>{true, true, false, false}));
  }
}

TEST(Lane, QuiesceKeepsItsDeadline) {
  Gate gate(false);
  Lane lane("test", [&](Unit&, PackBuffer&) { return pass(gate); });
  EXPECT_TRUE(lane.quiesce(never())) << "an empty lane is idle";
  push(lane, unit_of(0), false);
  EXPECT_FALSE(lane.quiesce(Clock::now()));
  gate.await(1);
  EXPECT_FALSE(lane.quiesce(Clock::now()));
  gate.open();
  EXPECT_TRUE(lane.quiesce(never()));
}

TEST(Lane, EndsWithWorkLeftInTheQueue) {
  std::atomic<int> ran{0};
  {
    Lane lane("test", [&](Unit&, PackBuffer&) { return ran.fetch_add(1) >= 0; });
    push(lane, unit_of(0), false);
  }
  EXPECT_EQ(ran.load(), 0);
}

TEST(PackBuffer, GrowsAndIsAligned) {
  PackBuffer buffer;
  for (const std::size_t bytes : {1, 1000, 10, 100000}) {
    std::byte* memory = buffer.reserve(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 256, 0U);
    memory[bytes - 1] = std::byte{1};
  }
}

/// While a unit runs the next one is on its way already, and no third one. Behind one that fails
/// none is.
TEST(Lane, PreparesOneUnitAhead) {
  std::vector<std::string> calls;
  Lane lane(
      "test",
      [&](Unit& unit, PackBuffer&) {
        calls.push_back("run " + std::to_string(unit.plan.seq));
        return unit.plan.seq != 3;
      },
      [&](const Unit& unit) { calls.push_back("prepare " + std::to_string(unit.plan.seq)); });
  for (std::uint64_t seq = 0; seq < 3; ++seq) {
    push(lane, unit_of(seq), false);
  }
  help(lane);
  const std::vector<std::string> expected{"prepare 1", "run 0", "prepare 2", "run 1", "run 2"};
  EXPECT_EQ(calls, expected);
  for (std::uint64_t seq = 3; seq < 6; ++seq) {
    push(lane, unit_of(seq), false);
  }
  calls.clear();
  help(lane);
  EXPECT_EQ(calls, (std::vector<std::string>{"prepare 4", "run 3"})) << "3 has failed";
  push(lane, unit_of(6), true);
  EXPECT_TRUE(lane.quiesce(never())) << "what is dropped is not waited for";
  EXPECT_EQ(calls.size(), 2U);
}

}  // namespace
}  // namespace aiacc
