#include "csrc/control/tcp/greetings.h"

#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "csrc/base/log.h"
#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

using namespace std::chrono_literals;

Hello hello_of(std::uint32_t from) {
  Hello hello{};
  hello.magic = Hello::kMagic;
  hello.from = from;
  return hello;
}

class GreetingsTest : public testing::Test {
 protected:
  GreetingsTest() { configure_log(LogLevel::kFatal, -1); }

  Socket connected() { return connect_to(listener_.address(), soon()); }
  static void say(Socket& socket, const void* data, std::size_t bytes) {
    socket.send_all(data, bytes, "rank 0", soon());
  }
  static void say_hello(Socket& socket, std::uint32_t from) {
    const Hello hello = hello_of(from);
    say(socket, &hello, sizeof hello);
  }

  /// Serves whenever there is something to do, as whoever waits does, until `done`, or in vain.
  template <class Done>
  bool serve_until(Greetings& greetings, Done done) {
    for (const auto limit = soon(); Clock::now() < limit;) {
      greetings.serve([this](const Hello& hello, Socket socket) {
        from_.push_back(hello.from);
        accepted_.push_back(std::move(socket));
        return std::string();
      });
      if (done()) {
        return true;
      }
      std::vector<pollfd> entries;
      greetings.watch(entries);
      poll(entries.data(), entries.size(), 10);
    }
    return false;
  }

  static bool is_closed(Socket& socket) {
    char byte = 0;
    return !status_of([&] { socket.recv_some(&byte, 1, "rank 0"); }).ok();
  }

  Listener listener_{"127.0.0.1"};
  std::vector<std::uint32_t> from_;
  std::vector<Socket> accepted_;
};

TEST_F(GreetingsTest, AHelloInPiecesIsPutTogether) {
  Greetings greetings(listener_);
  Socket rank = connected();
  const Hello hello = hello_of(7);
  say(rank, &hello, 5);
  ASSERT_TRUE(serve_until(greetings, [&] { return greetings.count() == 1; }));
  say(rank, reinterpret_cast<const char*>(&hello) + 5, sizeof hello - 5);
  ASSERT_TRUE(serve_until(greetings, [&] { return !from_.empty(); }));
  EXPECT_EQ(from_, std::vector<std::uint32_t>{7});
  EXPECT_EQ(greetings.count(), 0U);
}

TEST_F(GreetingsTest, PatienceIsForTheWholeHello) {
  Greetings greetings(listener_, 100ms);
  Socket silent = connected();
  Socket slow = connected();
  const Hello hello = hello_of(7);
  const auto* next = reinterpret_cast<const char*>(&hello);
  // A byte every time that somebody looks, fewer than make a hello: new ones do not buy time.
  EXPECT_TRUE(serve_until(greetings, [&] {
    if (next < reinterpret_cast<const char*>(&hello) + sizeof hello - 1 && !is_closed(slow)) {
      slow.send_some(next++, 1, "rank 0");
    }
    return is_closed(silent) && is_closed(slow);
  }));
  EXPECT_EQ(greetings.count(), 0U);
  EXPECT_TRUE(from_.empty());
}

TEST_F(GreetingsTest, TheOldestGivesWay) {
  Greetings greetings(listener_);
  std::vector<Socket> strangers;
  for (std::size_t i = 0; i < Greetings::kMost + 10; ++i) {
    strangers.push_back(connected());
    ASSERT_TRUE(serve_until(
        greetings, [&] { return greetings.count() == std::min(i + 1, Greetings::kMost); }));
  }
  ASSERT_TRUE(serve_until(greetings, [&] { return is_closed(strangers[9]); }));
  EXPECT_EQ(greetings.count(), Greetings::kMost);
  EXPECT_FALSE(is_closed(strangers[10]));
}

TEST_F(GreetingsTest, WhoSaysItsHelloInTimeNeverGivesWay) {
  Greetings greetings(listener_);
  std::vector<Socket> all;
  for (std::uint32_t i = 0; i < 300; ++i) {
    all.push_back(connected());
    if (i % 3 == 0) {
      say_hello(all.back(), i);
    }
  }
  ASSERT_TRUE(serve_until(greetings, [&] { return from_.size() == 100; }));
  EXPECT_LE(greetings.count(), Greetings::kMost);
}

TEST_F(GreetingsTest, AFloodOfShortVisitsLeavesNothing) {
  Greetings greetings(listener_);
  for (int i = 0; i < 500; ++i) {
    connected().close();
  }
  Socket rank = connected();
  say_hello(rank, 7);
  ASSERT_TRUE(serve_until(greetings, [&] { return !from_.empty() && greetings.count() == 0; }));
}

}  // namespace
}  // namespace aiacc
