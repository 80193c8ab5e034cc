#include "csrc/engines/shm/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/support/process.h"

namespace aiacc {
namespace {

/// Both ends of a connection.
std::pair<Socket, Socket> connected(UnixListener& listener) {
  Socket one = connect_unix(listener.name());
  Socket other = listener.accept();
  EXPECT_TRUE(one.valid() && other.valid());
  return {std::move(one), std::move(other)};
}

TEST(UnixSocketTest, CarriesAMessageAndADescriptor) {
  UnixListener listener;
  EXPECT_FALSE(listener.accept().valid());
  const auto [one, other] = connected(listener);
  char got[8] = {};
  EXPECT_EQ(UnixMessage::kNothing, receive_message(other, got, sizeof got).kind);
  const Socket null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(send_message(one, "with", 5, null.fd()));
  EXPECT_TRUE(send_message(one, "none", 5));
  const UnixMessage first = receive_message(other, got, sizeof got);
  EXPECT_EQ(UnixMessage::kMessage, first.kind);
  EXPECT_STREQ("with", got);
  struct stat sent{};
  struct stat received{};
  ASSERT_EQ(0, fstat(null.fd(), &sent));
  ASSERT_EQ(0, fstat(first.descriptor.fd(), &received));
  EXPECT_EQ(sent.st_rdev, received.st_rdev);
  EXPECT_EQ(FD_CLOEXEC, fcntl(first.descriptor.fd(), F_GETFD));
  const UnixMessage second = receive_message(other, got, sizeof got);
  EXPECT_FALSE(second.descriptor.valid());
  EXPECT_EQ(5U, second.bytes);
}

TEST(UnixSocketTest, TellsThatTheOtherSideHasGone) {
  UnixListener listener;
  auto [one, other] = connected(listener);
  one.close();
  char got = 0;
  EXPECT_EQ(UnixMessage::kGone, receive_message(other, &got, 1).kind);
  EXPECT_FALSE(send_message(other, "x", 1));
}

/// As in another network namespace, or after the end of the listener.
TEST(UnixSocketTest, ANameThatNobodyHasIsAnErrorWithARemedy) {
  std::string name;
  {
    const UnixListener listener;
    name = listener.name();
  }
  try {
    connect_unix(name);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kEngine, error.code());
    EXPECT_NE(std::string::npos, std::string(error.what()).find("--network=host")) << error.what();
  }
}

TEST(UnixSocketTest, OtherUsersAreTurnedAwayOnBothSides) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "needs root, to be another user";
  }
  UnixListener listener;
  int ends[2];
  ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
  const pid_t child = fork();
  if (child == 0) {
    int outcome = setuid(12345);
    try {
      connect_unix(listener.name());
      outcome = 1;
    } catch (const Error& error) {
      outcome |= std::strstr(error.what(), "another user") == nullptr ? 2 : 0;
    }
    _exit(outcome);
  }
  int status = -1;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  // It has connected, and is passed over.
  const Socket friendly = connect_unix(listener.name());
  const Socket accepted = listener.accept();
  EXPECT_TRUE(send_message(friendly, "x", 1));
  char got = 0;
  EXPECT_EQ(UnixMessage::kMessage, receive_message(accepted, &got, 1).kind);
  EXPECT_FALSE(listener.accept().valid());
  close(ends[0]);
  close(ends[1]);
}

TEST(UnixSocketTest, AFullBacklogIsNoError) {
  UnixListener listener;
  std::vector<Socket> crowd;
  for (Socket one = connect_unix(listener.name()); one.valid();
       one = connect_unix(listener.name())) {
    crowd.push_back(std::move(one));
    ASSERT_LT(crowd.size(), 100000U);
  }
  EXPECT_GT(crowd.size(), 64U);
  listener.accept();
  EXPECT_TRUE(connect_unix(listener.name()).valid());
}

TEST(UnixSocketTest, MoreDescriptorsThanOneAreNotKept) {
  UnixListener listener;
  const auto [one, other] = connected(listener);
  int pair[2] = {open("/dev/null", O_RDWR | O_CLOEXEC), open("/dev/null", O_RDWR | O_CLOEXEC)};
  iovec part{const_cast<char*>("x"), 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof pair)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof pair);
  std::memcpy(CMSG_DATA(header), pair, sizeof pair);
  ASSERT_EQ(1, sendmsg(one.fd(), &message, 0));
  close(pair[0]);
  close(pair[1]);
  char got = 0;
  const UnixMessage received = receive_message(other, &got, 1);
  ASSERT_TRUE(received.descriptor.valid());
  EXPECT_LT(fcntl(received.descriptor.fd() + 1, F_GETFD), 0);
}

TEST(UnixSocketTest, NoDescriptorLeftIsAnErrorThatSaysSo) {
  UnixListener listener;
  const auto [one, other] = connected(listener);
  ASSERT_TRUE(send_message(one, "x", 1, one.fd()));
  const DescriptorLimit limit(0);
  char got = 0;
  try {
    receive_message(other, &got, 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(Code::kEngine, error.code());
    EXPECT_NE(std::string::npos, std::string(error.what()).find("ulimit -n")) << error.what();
  }
}

}  // namespace
}  // namespace aiacc
