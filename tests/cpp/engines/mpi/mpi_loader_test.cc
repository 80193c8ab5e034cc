#include "csrc/engines/mpi/mpi_loader.h"

#include <cstdio>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <tuple>

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

TEST(MpiLoaderTest, SaysWhyThereIsNoMpi) {
  const std::string none = file_with("no_plugin", "something else");
  const std::string mpich =
      file_with("mpich", std::string("ELF aiacc-mpi-flavour=mpich\0more", 32));
  const std::string fake = AIACC_FAKE_MPI;
  const std::tuple<std::string, std::string, std::string> reasons[] = {
      {"/nowhere/libaiacc_mpi.so", fake, "/nowhere/libaiacc_mpi.so"},
      {none, fake, "not an aiacc MPI plug-in"},
      {fake, "/nowhere/libmpi.so.40", "/nowhere/libmpi.so.40"},
      {mpich, fake, "Open MPI v5.0.8, package: a fake (expected MPICH"},
      {mpich, fake, "AIACC_MPI_LIBRARY"},
      {fake, fake, "another version of aiacc"}};
  for (const auto& [plugin, library, part] : reasons) {
    const std::string reason = load_mpi(plugin, library);
    EXPECT_NE(std::string::npos, reason.find(part)) << reason;
    EXPECT_FALSE(mpi_viability().viable);
    EXPECT_EQ(reason, mpi_viability().detail);
  }
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
  yield_until([] { return calls_under_way() == 0; });
}

TEST(MpiCallTest, SaysWhichCallHasFailed) {
  MpiPlugin plugin{};
  plugin.describe = [](int code, char* text, std::size_t bytes) {
    std::snprintf(text, bytes, "code %d", code);
  };
  expect_error(status_of([&] { wait_for_call(plugin, [] { return 7; }, "MPI_Comm_dup", [] {}); }),
               Code::kEngine,
               {"MPI_Comm_dup failed: code 7"});
}

TEST(MpiLoaderTest, NothingWorksWithoutPlugin) {
  EXPECT_THROW(mpi_initialize(0, 1), Error);
  EXPECT_THROW(mpi_all_gather("payload"), Error);
  EXPECT_THROW(create_mpi_engine(EngineContext{}), Error);
}

}  // namespace
}  // namespace aiacc
