#include "csrc/base/build_info.h"

#include <map>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(BuildInfo, SaysWhyThereIsNoMpiOrWhichOneThereIs) {
  const auto list = build_info();
  std::map<std::string, std::string> info(list.begin(), list.end());
  EXPECT_FALSE(info.at("version").empty());
  EXPECT_FALSE(info.at("compiler").empty());
  EXPECT_FALSE(info.at("cuda").empty());
  const bool has_mpi = info.at("mpi_flavour") != "none";
  EXPECT_EQ(has_mpi, info.at("mpi_reason").empty());
  EXPECT_EQ(has_mpi, !info.at("mpi_soname").empty());
}

}  // namespace
}  // namespace aiacc
