#include "csrc/engines/mpi/mpi_progress.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

constexpr MpiHandle kCommunicator = 7;

std::atomic<int> calls{0};
std::atomic<int> strays{0};  ///< calls with another communicator
std::atomic<bool> inside{false};
std::atomic<bool> held{false};  ///< calls do not return

MpiPlugin fake_plugin() {
  MpiPlugin plugin{};
  plugin.progress = [](MpiHandle communicator) {
    inside = true;
    ++calls;
    strays += communicator == kCommunicator ? 0 : 1;
    while (held) {
      std::this_thread::yield();
    }
    inside = false;
    return 1;  // an error, which is somebody else's
  };
  return plugin;
}

class MpiProgressTest : public testing::Test {
 protected:
  MpiProgressTest() {
    calls = 0;
    held = false;
  }

  const MpiPlugin plugin_ = fake_plugin();
};

TEST_F(MpiProgressTest, CallsMpiAgainAndAgain) {
  MpiProgress progress(plugin_, kCommunicator);
  while (calls < 50) {
    std::this_thread::yield();
  }
  EXPECT_EQ(strays, 0);
}

TEST_F(MpiProgressTest, StopReturnsWhenTheThreadIsOutsideMpi) {
  held = true;
  MpiProgress progress(plugin_, kCommunicator);
  while (!inside) {
    std::this_thread::yield();
  }
  std::thread other([&] {
    progress.stop();
    EXPECT_FALSE(inside);
  });
  held = false;
  progress.stop();
  EXPECT_FALSE(inside);
  other.join();
  const int last = calls;
  progress.stop();
  EXPECT_EQ(calls, last);
}

TEST_F(MpiProgressTest, RestBeginsWhenTheThreadIsOutsideMpi) {
  held = true;
  MpiProgress progress(plugin_, kCommunicator);
  while (!inside) {
    std::this_thread::yield();
  }
  std::thread other([&] {
    progress.rest(true);
    EXPECT_FALSE(inside);
  });
  held = false;
  other.join();
  for (const bool rests : {true, false}) {  // what is queued moves while it rests, too
    progress.rest(rests);
    const int last = calls;
    while (calls == last) {
      std::this_thread::yield();
    }
  }
}

}  // namespace
}  // namespace aiacc
