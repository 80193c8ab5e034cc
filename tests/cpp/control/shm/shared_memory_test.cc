#include "csrc/control/shm/shared_memory.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/fakes/forbidden_calls.h"
#include "tests/cpp/support/process.h"

namespace aiacc {
namespace {

constexpr std::size_t kBytes = std::size_t{8} << 20;

/// Runs `body` in a thread of its own, which may change itself for good.
template <class Body>
void in_a_thread(Body body) {
  std::thread(body).join();
}

void expect_failure(const std::string& text, const std::function<void()>& body) {
  expect_error(status_of(body), Code::kEngine, {text});
}

/// What holds of memory, whatever it was made of.
void check_memory() {
  auto [mine, descriptor] = SharedMemory::create(kBytes);
  EXPECT_EQ(kBytes, mine.size());
  mine.allocate(descriptor, kBytes / 2, kBytes / 2);
  const SharedMemory theirs = SharedMemory::map(descriptor, kBytes);
  EXPECT_NE(mine.data(), theirs.data());
  EXPECT_EQ(std::byte{0}, theirs.data()[kBytes - 1]);
  mine.data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(std::byte{7}, theirs.data()[kBytes - 1]);
  struct stat status{};
  ASSERT_EQ(0, fstat(descriptor.fd(), &status));
  EXPECT_EQ(0600U, status.st_mode & 0777U);
  EXPECT_EQ(0U, status.st_nlink);
  EXPECT_EQ(FD_CLOEXEC, fcntl(descriptor.fd(), F_GETFD));
}

TEST(SharedMemoryTest, WhoMapsItSeesWhatTheCreatorWrites) {
  check_memory();
  const auto [memory, descriptor] = SharedMemory::create(kBytes);
  EXPECT_EQ(-1, ftruncate(descriptor.fd(), 0));
  EXPECT_EQ(-1, ftruncate(descriptor.fd(), kBytes * 2));
  EXPECT_EQ(-1, fcntl(descriptor.fd(), F_ADD_SEALS, F_SEAL_WRITE));
}

TEST(SharedMemoryTest, IsAFileWithoutANameWhereMemfdIsForbidden) {
  const auto entries = [] {
    return std::distance(std::filesystem::directory_iterator("/dev/shm"),
                         std::filesystem::directory_iterator());
  };
  in_a_thread([&] {
    if (!forbid_memfd()) {
      GTEST_SKIP() << "no sandbox here";
    }
    const auto before = entries();
    check_memory();
    const auto [memory, descriptor] = SharedMemory::create(kBytes);
    EXPECT_EQ(before, entries());
    struct stat status{};
    struct stat folder{};
    ASSERT_EQ(0, fstat(descriptor.fd(), &status));
    ASSERT_EQ(0, stat("/dev/shm", &folder));
    EXPECT_EQ(folder.st_dev, status.st_dev);
  });
}

TEST(SharedMemoryTest, WhereBothAreForbiddenTheErrorNamesBoth) {
  in_a_thread([] {
    if (!forbid_calls({{SYS_memfd_create, EPERM}, {SYS_openat, EACCES, 2, O_TMPFILE}})) {
      GTEST_SKIP() << "no sandbox here";
    }
    expect_failure("memfd_create (errno 1) and a file without a name in /dev/shm",
                   [] { SharedMemory::create(kBytes); });
  });
}

/// Otherwise the first use of what is missing ends the process.
TEST(SharedMemoryTest, MoreThanThereIsIsAnErrorOfAllocate) {
  in_a_thread([] {
    if (unshare(CLONE_FS | CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", "/dev/shm", "tmpfs", 0, "size=4m") != 0 || !forbid_memfd()) {
      GTEST_SKIP() << "needs root, for a small /dev/shm";
    }
    auto [memory, descriptor] = SharedMemory::create(kBytes);
    memory.allocate(descriptor, 0, kBytes / 4);
    expect_failure("no 6 MiB of shared memory are left", [&memory = memory, &file = descriptor] {
      memory.allocate(file, kBytes / 4, kBytes * 3 / 4);
    });
    memory.data()[kBytes / 4 - 1] = std::byte{1};
  });
}

TEST(SharedMemoryTest, ALimitOfFileSizesIsAnErrorAndNoSignal) {
  rlimit before{};
  ASSERT_EQ(0, getrlimit(RLIMIT_FSIZE, &before));
  const rlimit low{kBytes - 1, before.rlim_max};
  ASSERT_EQ(0, setrlimit(RLIMIT_FSIZE, &low));
  expect_failure("ulimit -f", [] { SharedMemory::create(kBytes); });
  setrlimit(RLIMIT_FSIZE, &before);
}

TEST(SharedMemoryTest, WhatIsNoMemoryOfAnotherRankIsRefused) {
  const auto [memory, descriptor] = SharedMemory::create(kBytes);
  expect_failure("(expected 4096 ", [&file = descriptor] { SharedMemory::map(file, 4096); });
  expect_failure("(expected ", [&file = descriptor] { SharedMemory::map(file, kBytes + 4096); });
  int ends[2];
  ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
  const Socket pipe(ends[0]);
  const Socket other_end(ends[1]);
  expect_failure("(expected ", [&] { SharedMemory::map(pipe, 0); });
  expect_failure("(expected ", [&] { SharedMemory::map(pipe, kBytes); });
  const Socket open_ended(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(0, ftruncate(open_ended.fd(), kBytes));
  expect_failure("of a size that may change", [&] { SharedMemory::map(open_ended, kBytes); });
  expect_failure("cannot look at", [] { SharedMemory::map(Socket(), kBytes); });
  if (geteuid() == 0) {
    ASSERT_EQ(0, fchown(descriptor.fd(), 12345, 12345));
    expect_failure("of user 12345", [&file = descriptor] { SharedMemory::map(file, kBytes); });
  }
}

/// Whether this process maps a file of ours; not by an address, where something else may be.
bool maps_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return text.find("memfd:aiacc") != std::string::npos;
}

TEST(SharedMemoryTest, AChildOfForkDoesNotHaveIt) {
  auto [memory, descriptor] = SharedMemory::create(kBytes);
  memory.allocate(descriptor, 0, kBytes);
  ASSERT_TRUE(maps_shared_memory());
  const pid_t child = fork();
  if (child == 0) {
    _exit((maps_shared_memory() ? 1 : 0) + (fcntl(descriptor.fd(), F_GETFD) >= 0 ? 2 : 0));
  }
  int status = -1;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(0, WEXITSTATUS(status) & 1) << "the memory is mapped";
  EXPECT_EQ(0, WEXITSTATUS(status) & 2) << "the descriptor is open";
}

TEST(SharedMemoryTest, IsTakenByAllocateAndReturnedAtTheEnd) {
  const std::size_t before = resident_memory();
  {
    auto [memory, descriptor] = SharedMemory::create(kBytes);
    EXPECT_LT(resident_memory(), before + kBytes / 2);
    memory.allocate(descriptor, 0, kBytes);
    struct stat status{};
    ASSERT_EQ(0, fstat(descriptor.fd(), &status));
    EXPECT_GE(static_cast<std::size_t>(status.st_blocks) * 512, kBytes);
    std::memset(memory.data(), 7, kBytes);
    SharedMemory other = std::move(memory);
    EXPECT_GE(resident_memory() + kBytes / 8, before + kBytes);
  }
  EXPECT_LT(resident_memory(), before + kBytes / 2);
}

}  // namespace
}  // namespace aiacc
