#include "csrc/control/shm/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/process.h"

namespace aiacc {
namespace {

TEST(UnixSocketTest, CarriesAMessageAndADescriptor) {
  UnixSocket one;
  UnixSocket other;
  char got[8] = {};
  Socket descriptor;
  EXPECT_FALSE(other.receive(got, sizeof got, descriptor));
  const Socket null(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(0, one.send(other.name(), "with", 5, null.fd()));
  EXPECT_EQ(0, one.send(other.name(), "none", 5));
  ASSERT_TRUE(other.receive(got, sizeof got, descriptor));
  EXPECT_STREQ("with", got);
  struct stat sent{};
  struct stat received{};
  ASSERT_EQ(0, fstat(null.fd(), &sent));
  ASSERT_EQ(0, fstat(descriptor.fd(), &received));
  EXPECT_EQ(sent.st_rdev, received.st_rdev);
  EXPECT_EQ(FD_CLOEXEC, fcntl(descriptor.fd(), F_GETFD));
  ASSERT_TRUE(other.receive(got, sizeof got, descriptor));
  EXPECT_STREQ("none", got);
  EXPECT_FALSE(descriptor.valid());
}

/// As in another network namespace, or after the end of the other.
TEST(UnixSocketTest, ANameThatNobodyHasIsRefused) {
  std::string name;
  {
    const UnixSocket other;
    name = other.name();
  }
  EXPECT_EQ(ECONNREFUSED, UnixSocket().send(name, "x", 1));
}

TEST(UnixSocketTest, HasRoomAgainWhenSomethingWasTaken) {
  UnixSocket one;
  UnixSocket other;
  int error = 0;
  for (int sent = 0; error == 0 && sent < 100'000; ++sent) {
    error = one.send(other.name(), "x", 1);
  }
  EXPECT_EQ(EAGAIN, error);
  char got = 0;
  Socket descriptor;
  EXPECT_TRUE(other.receive(&got, 1, descriptor));
  EXPECT_EQ(0, one.send(other.name(), "x", 1));
  other.clear();
  EXPECT_FALSE(other.receive(&got, 1, descriptor));
}

TEST(UnixSocketTest, MoreDescriptorsThanOneAreNotKept) {
  UnixSocket one;
  UnixSocket other;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  other.name().copy(address.sun_path + 1, sizeof address.sun_path - 1);
  int pair[2] = {open("/dev/null", O_RDWR | O_CLOEXEC), open("/dev/null", O_RDWR | O_CLOEXEC)};
  iovec part{const_cast<char*>("x"), 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof pair)] = {};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + other.name().size());
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
  Socket descriptor;
  ASSERT_TRUE(other.receive(&got, 1, descriptor));
  ASSERT_TRUE(descriptor.valid());
  EXPECT_LT(fcntl(descriptor.fd() + 1, F_GETFD), 0);
}

TEST(UnixSocketTest, NoDescriptorLeftIsAnErrorThatSaysSo) {
  UnixSocket one;
  UnixSocket other;
  ASSERT_EQ(0, one.send(other.name(), "x", 1, one.fd()));
  // The limit ends before the error is looked at: UBSan wants a descriptor for that.
  const auto receive = [&other] {
    const DescriptorLimit limit(0);
    char got = 0;
    Socket descriptor;
    other.receive(&got, 1, descriptor);
  };
  expect_error(status_of(receive), Code::kEngine, {"ulimit -n"});
}

}  // namespace
}  // namespace aiacc
