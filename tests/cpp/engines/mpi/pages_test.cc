#include "csrc/engines/mpi/pages.h"

#include <cstring>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/support/process.h"

namespace aiacc {
namespace {

constexpr std::size_t kBytes = std::size_t{32} << 20;

TEST(PagesTest, WhatIsGivenUpTakesNoMemoryButMayBeWritten) {
  Pages pages(kBytes);
  std::byte* data = pages.data();
  EXPECT_EQ(std::byte{0}, data[kBytes - 1]);
  std::memset(data, 7, kBytes);
  const std::size_t before = resident_memory();
  pages.give_up();
  EXPECT_EQ(nullptr, pages.data());
  EXPECT_LT(resident_memory() + kBytes / 2, before);
  EXPECT_EQ(std::byte{0}, data[kBytes / 2]);
  data[kBytes / 2] = std::byte{1};  // as a late message would
}

TEST(PagesTest, TheLastOwnerReturnsThem) {
  const std::size_t before = resident_memory();
  {
    Pages pages(kBytes);
    std::memset(pages.data(), 7, kBytes);
    const Pages other = std::move(pages);
    EXPECT_EQ(nullptr, pages.data());
    EXPECT_EQ(std::byte{7}, other.data()[kBytes - 1]);
    EXPECT_GT(resident_memory(), before + kBytes / 2);
  }
  EXPECT_LT(resident_memory(), before + kBytes / 2);
}

TEST(PagesTest, MoreThanThereIsIsAnError) {
  EXPECT_THROW(Pages(std::numeric_limits<std::size_t>::max() / 4), Error);
}

}  // namespace
}  // namespace aiacc
