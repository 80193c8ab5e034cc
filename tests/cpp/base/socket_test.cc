#include "csrc/base/socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/event.h"
#include "csrc/base/interfaces.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/interruptions.h"

namespace aiacc {
namespace {

Clock::time_point in(int milliseconds) {
  return Clock::now() + std::chrono::milliseconds(milliseconds);
}

bool readable(int fd, int timeout_ms = 0) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, timeout_ms) == 1;
}

std::pair<Socket, Socket> connected_pair() {
  Listener listener("127.0.0.1");
  Socket one = connect_to(listener.address(), in(10'000));
  readable(listener.fd(), 10'000);
  Socket other = listener.accept();
  EXPECT_TRUE(other.valid());
  return {std::move(one), std::move(other)};
}

TEST(SendAll, WaitsForRoomUntilAllIsSent) {
  auto [one, other] = connected_pair();
  const std::string text(std::size_t{8} << 20, 'x');
  std::size_t got = 0;
  std::thread reader([&other = other, &got, &text] {
    std::string buffer(std::size_t{64} << 10, '\0');
    while (got < text.size() && readable(other.fd(), 10'000)) {
      got += other.recv_some(buffer.data(), buffer.size(), "one");
    }
  });
  one.send_all(text.data(), text.size(), "other", in(10'000));
  reader.join();
  EXPECT_EQ(got, text.size());
}

TEST(SendAll, EndsAtTheDeadlineIfNobodyReads) {
  auto [one, other] = connected_pair();
  const std::string text(std::size_t{64} << 20, 'x');
  expect_error(
      status_of([&one = one, &text] { one.send_all(text.data(), text.size(), "other", in(50)); }),
      Code::kTimeout,
      {"other"});
}

TEST(SplitAddress, HostsAndPorts) {
  using Address = std::pair<std::string, int>;
  EXPECT_EQ(split_address("10.0.0.1:29500"), Address("10.0.0.1", 29500));
  EXPECT_EQ(split_address("node-7.example:0"), Address("node-7.example", 0));
  EXPECT_EQ(split_address("[::1]:65535"), Address("::1", 65535));
  EXPECT_EQ(split_address("[fe80::1%eth0]:1"), Address("fe80::1%eth0", 1));
}

TEST(SplitAddress, AnythingElseIsAnErrorThatQuotesIt) {
  for (const char* bad : {"",
                          ":",
                          "host",
                          "host:",
                          ":80",
                          "host:http",
                          "host:65536",
                          "host:99999999999999999999",
                          "host:-1",
                          "host: 80",
                          "host:8 0"}) {
    expect_error(status_of([&] { split_address(bad); }),
                 Code::kInvalidArgument,
                 {"'" + std::string(bad) + "'"});
  }
}

bool comes_through(Listener& listener, const std::string& host) {
  const Socket socket = connect_to(host + ":" + std::to_string(listener.port()), in(10'000));
  EXPECT_TRUE(readable(listener.fd(), 10'000));
  return listener.accept().valid();
}

bool has_ipv6() {
  const auto addresses = interface_addresses();
  return std::any_of(addresses.begin(), addresses.end(), [](const InterfaceAddress& found) {
    return found.address == "::1";
  });
}

TEST(Listener, HasAnAddressThatConnects) {
  for (const std::vector<std::string>& only :
       {std::vector<std::string>{}, {"127.0.0.1"}, {"127.0.0.1", "127.0.0.2"}}) {
    Listener listener(only);
    EXPECT_EQ(split_address(listener.address()).second, listener.port());
    EXPECT_FALSE(listener.accept().valid()) << "accept must not block";
    EXPECT_TRUE(comes_through(listener, "127.0.0.1"));
  }
}

TEST(Listener, AnswersBothKindsOfAddress) {
  if (!has_ipv6()) {
    GTEST_SKIP() << "no IPv6 on this host";
  }
  Listener any;
  EXPECT_TRUE(comes_through(any, "127.0.0.1"));
  EXPECT_TRUE(comes_through(any, "[::1]"));
  Listener both(std::vector<std::string>{"::1", "127.0.0.1"});
  EXPECT_EQ(both.address(), "[::1]:" + std::to_string(both.port()));
  EXPECT_TRUE(comes_through(both, "127.0.0.1"));
  EXPECT_TRUE(comes_through(both, "[::1]"));
}

TEST(Listener, AnswersOnlyToItsAddresses) {
  Listener some(std::vector<std::string>{"127.0.0.2", "127.0.0.3"});
  EXPECT_TRUE(comes_through(some, "127.0.0.3"));
  EXPECT_FALSE(comes_through(some, "127.0.0.1"));
  const Listener one("127.0.0.2");
  expect_error(
      status_of([&] { connect_to("127.0.0.1:" + std::to_string(one.port()), in(10'000)); }),
      Code::kPeerLost,
      {"127.0.0.1"});
}

TEST(Listener, AnAddressOfAnotherHostIsAnErrorThatNamesIt) {
  for (const char* wrong : {"192.0.2.77", "nosuch0"}) {
    expect_error(
        status_of([&] { const Listener listener(wrong); }), Code::kInvalidArgument, {wrong});
  }
}

TEST(InterfaceAddresses, KnowLoopback) {
  const auto all = interface_addresses();
  const auto found = std::find_if(
      all.begin(), all.end(), [](const auto& one) { return one.address == "127.0.0.1"; });
  ASSERT_NE(found, all.end());
  EXPECT_EQ(found->interface, "lo");
  EXPECT_EQ(found->prefix_bits, 8);
  EXPECT_TRUE(found->running);
}

TEST(ConnectTo, ARefusedConnectionMeansThatTheListenerIsGone) {
  std::string address;
  {
    const Listener gone("127.0.0.1");
    address = gone.address();
  }
  expect_error(status_of([&] { connect_to(address, in(600'000)); }), Code::kPeerLost, {address});
}

TEST(ConnectTo, ANameThatDoesNotResolveIsAnError) {
  const std::string address = "no.such.host.invalid:80";
  expect_error(status_of([&] { connect_to(address, in(100)); }),
               Code::kInvalidArgument,
               {"no.such.host.invalid"});
}

TEST(Socket, MovesBytesWithoutBlocking) {
  auto [one, other] = connected_pair();
  char byte = 0;
  EXPECT_EQ(other.recv_some(&byte, 1, "peer"), 0U) << "nothing there yet";
  EXPECT_EQ(other.recv_some(&byte, 0, "peer"), 0U);
  EXPECT_EQ(one.send_some("x", 1, "peer"), 1U);
  EXPECT_TRUE(readable(other.fd(), 10'000));
  EXPECT_EQ(other.recv_some(&byte, 1, "peer"), 1U);
  EXPECT_EQ(byte, 'x');
  const std::vector<char> much(1 << 20, 'y');
  while (one.send_some(much.data(), much.size(), "peer") > 0) {
  }
}

TEST(Socket, ARateIsTheKernelsFromThenOn) {
  auto [one, other] = connected_pair();
  one.limit_rate(5'000'000'000);
  std::uint64_t rate = 0;
  socklen_t length = sizeof rate;
  ASSERT_EQ(getsockopt(one.fd(), SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &length), 0);
  EXPECT_EQ(rate, 5'000'000'000U);
  Socket closed;
  EXPECT_THROW(closed.limit_rate(1), Error);
}

TEST(Socket, AClosedPeerIsLostAndNamed) {
  auto [one, other] = connected_pair();
  other.close();
  EXPECT_TRUE(readable(one.fd(), 10'000));
  char byte = 0;
  expect_error(status_of([&, &socket = one] { socket.recv_some(&byte, 1, "rank 7"); }),
               Code::kPeerLost,
               {"rank 7"});
  // The second send at the latest meets the reset; it must not raise SIGPIPE.
  expect_error(status_of([&socket = one] {
                 for (int i = 0; i < 1000; ++i) {
                   socket.send_some("x", 1, "rank 7");
                 }
               }),
               Code::kPeerLost,
               {"rank 7"});
}

TEST(Socket, ShutdownWakesTheOtherEndAndThisOne) {
  auto [one, other] = connected_pair();
  one.shutdown();
  EXPECT_TRUE(readable(one.fd(), 10'000));
  EXPECT_TRUE(readable(other.fd(), 10'000));
}

TEST(PollUntil, TakesNoSignalForAnEvent) {
  const Interruptions signals;
  Event event;
  pollfd entry{event.fd(), POLLIN, 0};
  const auto deadline = in(50);
  EXPECT_EQ(poll_until(&entry, 1, deadline), 0);
  EXPECT_GE(Clock::now(), deadline);
  EXPECT_EQ(poll_until(&entry, 1, in(-5)), 0);
  event.set();
  EXPECT_EQ(poll_until(&entry, 1, Clock::time_point::max()), 1);
}

TEST(Event, IsReadableFromSetToClear) {
  Event event;
  EXPECT_FALSE(readable(event.fd()));
  event.clear();
  event.set();
  event.set();
  EXPECT_TRUE(readable(event.fd()));
  event.clear();
  EXPECT_FALSE(readable(event.fd()));
}

}  // namespace
}  // namespace aiacc
