#include "csrc/engines/mpi/mpi_loader.h"

#include <cstdio>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "csrc/engines/mpi/mpi_request.h"
#include "tests/cpp/support/errors.h"

// AIACC_FAKE_MPI, from CMake: path of the library made of fake_mpi.cc.

namespace aiacc {
namespace {

/// A file whose content starts like a plug-in's.
std::string file_with(const std::string& name, const std::string& content) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

void expect_reason(const std::string& reason, const std::string& part) {
  EXPECT_NE(std::string::npos, reason.find(part)) << reason;
  EXPECT_FALSE(mpi_viability().viable);
  EXPECT_EQ(reason, mpi_viability().detail);
}

TEST(MpiLoaderTest, SaysThatThereIsNoPlugin) {
  expect_reason(load_mpi("/nowhere/libaiacc_mpi.so", AIACC_FAKE_MPI), "/nowhere/libaiacc_mpi.so");
}

TEST(MpiLoaderTest, SaysThatAFileIsNoPlugin) {
  const std::string path = file_with("no_plugin", "something else");
  expect_reason(load_mpi(path, AIACC_FAKE_MPI), "not an aiacc MPI plug-in");
}

TEST(MpiLoaderTest, SaysThatThereIsNoLibrary) {
  expect_reason(load_mpi(AIACC_FAKE_MPI, "/nowhere/libmpi.so.40"), "/nowhere/libmpi.so.40");
}

TEST(MpiLoaderTest, NamesBothFlavoursWhenTheyDiffer) {
  const std::string content = "ELF aiacc-mpi-flavour=mpich";
  const std::string path = file_with("mpich_plugin", content + '\0' + "more");
  const std::string reason = load_mpi(path, AIACC_FAKE_MPI);
  expect_reason(reason, "Open MPI v5.0.8, package: a fake (expected MPICH");
  expect_reason(reason, "AIACC_MPI_LIBRARY");
}

TEST(MpiLoaderTest, RefusesAPluginOfAnotherVersion) {
  expect_reason(load_mpi(AIACC_FAKE_MPI, AIACC_FAKE_MPI), "another version of aiacc");
}

TEST(MpiCallTest, ACallThatIsGivenUpGoesOnAlone) {
  const MpiPlugin plugin{};
  auto go_on = std::make_shared<std::promise<void>>();
  auto has_ended = std::make_shared<std::promise<void>>();
  std::future<void> end = has_ended->get_future();
  const auto call = [gate = go_on->get_future().share(), has_ended] {
    gate.wait();
    has_ended->set_value();
    return 0;
  };
  const auto cancelled = [] { throw Error(Code::kShutdown, "in vain"); };
  EXPECT_THROW(wait_for_call(plugin, call, "MPI_Comm_dup", cancelled), Error);
  EXPECT_EQ(1, calls_under_way());
  go_on->set_value();
  end.wait();
  while (calls_under_way() > 0) {
    std::this_thread::yield();
  }
}

TEST(MpiCallTest, SaysWhichCallHasFailed) {
  MpiPlugin plugin{};
  plugin.describe = [](int code, char* text, std::size_t bytes) {
    std::snprintf(text, bytes, "code %d", code);
  };
  const Status status =
      status_of([&] { wait_for_call(plugin, [] { return 7; }, "MPI_Comm_dup", [] {}); });
  EXPECT_NE(std::string::npos, status.message().find("MPI_Comm_dup failed: code 7"));
}

TEST(MpiLoaderTest, NothingWorksWithoutPlugin) {
  EXPECT_THROW(mpi_initialize(0, 1), Error);
  EXPECT_THROW(mpi_all_gather("payload"), Error);
  EXPECT_THROW(create_mpi_engine(EngineContext{}), Error);
}

}  // namespace
}  // namespace aiacc
