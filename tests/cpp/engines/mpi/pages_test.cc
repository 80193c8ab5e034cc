#include "csrc/engines/mpi/pages.h"

#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <utility>

#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr std::size_t kBytes = std::size_t{32} << 20;

std::string name() { return "aiacc-test-" + std::to_string(getpid()); }

/// Memory of this process that is in use, in bytes, shared or not.
std::size_t resident() {
  std::size_t total = 0;
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> total >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t free_in_shm() {
  struct statvfs system{};
  statvfs("/dev/shm", &system);
  return static_cast<std::size_t>(system.f_bfree) * system.f_frsize;
}

TEST(PagesTest, WhoOpensSeesWhatTheCreatorWrites) {
  const Pages mine = Pages::create(name(), kBytes);
  const Pages theirs = Pages::open(name(), kBytes);
  Pages::remove(name());
  EXPECT_THROW(Pages::open(name(), kBytes), Error);
  EXPECT_EQ(std::byte{0}, theirs.data()[kBytes - 1]);
  mine.data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(std::byte{7}, theirs.data()[kBytes - 1]);
}

TEST(PagesTest, WhatAKilledProcessHasLeftIsSweptAndNothingElse) {
  const std::string prefix = name() + "-sweep-";
  const Pages living = Pages::create(prefix + "living", 4096);
  const pid_t child = fork();
  if (child == 0) {
    const Pages left = Pages::create(prefix + "left", 4096);
    raise(SIGKILL);
  }
  ASSERT_EQ(child, waitpid(child, nullptr, 0));
  const Pages opened = Pages::open(prefix + "left", 4096);
  Pages::sweep(prefix);
  EXPECT_THROW(Pages::open(prefix + "left", 4096), Error);
  EXPECT_NO_THROW(Pages::open(prefix + "living", 4096));
  Pages::remove(prefix + "living");
}

TEST(PagesTest, ANameIsTakenOnce) {
  const Pages first = Pages::create(name(), 4096);
  EXPECT_THROW(Pages::create(name(), 4096), Error);
  Pages::remove(name());
}

/// Otherwise the first use of what is missing ends the process.
TEST(PagesTest, MoreThanThereIsIsAnErrorAndLeavesNothing) {
  struct statvfs system{};
  ASSERT_EQ(0, statvfs("/dev/shm", &system));
  const std::size_t all = static_cast<std::size_t>(system.f_blocks) * system.f_frsize;
  if (all == 0) {
    GTEST_SKIP() << "/dev/shm has no limit";
  }
  try {
    Pages::create(name(), all + kBytes);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string::npos, std::string(error.what()).find("/dev/shm has no"));
  }
  EXPECT_THROW(Pages::open(name(), kBytes), Error);
}

TEST(PagesTest, WhatIsGivenUpTakesNoMemoryButMayBeWritten) {
  for (const bool shared : {true, false}) {
    Pages pages = shared ? Pages::create(name(), kBytes) : Pages::own(kBytes);
    if (shared) {
      Pages::remove(name());
    }
    std::byte* data = pages.data();
    std::memset(data, 7, kBytes);
    const std::size_t before = resident();
    pages.give_up();
    EXPECT_EQ(nullptr, pages.data());
    EXPECT_LT(resident() + kBytes / 2, before) << (shared ? "shared" : "own");
    EXPECT_EQ(std::byte{0}, data[kBytes / 2]);
    data[kBytes / 2] = std::byte{1};  // as a late message would
  }
}

TEST(PagesTest, TheLastOwnerReturnsThem) {
  const std::size_t before = free_in_shm();
  {
    Pages pages = Pages::create(name(), kBytes);
    Pages::remove(name());
    Pages other = std::move(pages);
    EXPECT_EQ(nullptr, pages.data());
    EXPECT_LT(free_in_shm(), before);
  }
  EXPECT_GE(free_in_shm() + kBytes / 2, before);
}

}  // namespace
}  // namespace aiacc
