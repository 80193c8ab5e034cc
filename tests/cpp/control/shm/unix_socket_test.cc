#include "csrc/control/shm/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
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

/// As in another network namespace, or after the end of the listener.
TEST(UnixSocketTest, ANameThatNobodyHasIsAnErrorWithARemedy) {
  std::string name;
  {
    const UnixListener listener;
    name = listener.name();
  }
  expect_error(status_of([&] { connect_unix(name); }), Code::kEngine, {"--network=host"});
}

TEST(UnixSocketTest, OtherUsersAreTurnedAwayOnBothSides) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "needs root, to be another user";
  }
  UnixListener listener;
  const pid_t child = fork();
  if (child == 0) {
    const bool other_user = setuid(12345) == 0;
    const std::string text = status_of([&] { connect_unix(listener.name()); }).message();
    _exit(other_user && text.find("another user") != std::string::npos ? 0 : 1);
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
  // The limit ends before the error is looked at: UBSan wants a descriptor for that.
  const auto receive = [&end = other] {
    const DescriptorLimit limit(0);
    char got = 0;
    receive_message(end, &got, 1);
  };
  expect_error(status_of(receive), Code::kEngine, {"ulimit -n"});
}

}  // namespace
}  // namespace aiacc
