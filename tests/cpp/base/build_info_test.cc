#include "csrc/base/build_info.h"

#include <map>

#include <gtest/gtest.h>

namespace aiacc {
namespace {

TEST(BuildInfo, SaysWhichMpiOrWhyNoneAndWhichKernelsThereAre) {
  const auto list = build_info();
  const std::map<std::string, std::string> info(list.begin(), list.end());
  EXPECT_FALSE(info.at("version").empty());
  EXPECT_FALSE(info.at("compiler").empty());
  const bool has_mpi = !info.at("mpi_mpich").empty() || !info.at("mpi_openmpi").empty();
  EXPECT_EQ(has_mpi, info.at("mpi_reason").empty());
  EXPECT_FALSE(info.at("cuda").empty());
  const bool has_kernels = info.at("cuda").rfind("kernels for compute capability", 0) == 0;
  EXPECT_EQ(has_kernels, !info.at("cuda_architectures").empty());
}

}  // namespace
}  // namespace aiacc
