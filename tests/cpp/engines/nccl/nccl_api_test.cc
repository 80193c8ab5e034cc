#include "csrc/engines/nccl/nccl_api.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/base/dynamic_library.h"
#include "tests/cpp/engines/nccl_symbols.h"
#include "tests/cpp/support/errors.h"
#include "tests/cpp/support/foreign_functions.h"

// AIACC_FAKE_NCCL_NEW, _OLD and _TOO_OLD, from CMake: paths of libraries made of
// fake_nccl_library.cc.

namespace aiacc {
namespace {

TEST(NcclApiTest, EveryMemberIsItsFunction) {
  const NcclApi api = load_nccl(AIACC_FAKE_NCCL_NEW);
  EXPECT_EQ(23203, api.version);
  int line = 0;
#define AIACC_CALL(member, symbol) EXPECT_EQ(line++, call(api.member)) << #symbol;
  AIACC_NCCL_SYMBOLS(AIACC_CALL)
  AIACC_CALL(all_reduce_config, ncclAllReduceConfig)
}

TEST(NcclApiTest, AnOlderLibraryChoosesTheAlgorithm) {
  const NcclApi api = load_nccl(AIACC_FAKE_NCCL_OLD);
  EXPECT_EQ(22602, api.version);
  EXPECT_EQ(nullptr, api.all_reduce_config);
}

TEST(NcclApiTest, RefusesWhatIsTooOldMissingOrAnotherLibrary) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> refused = {
      {AIACC_FAKE_NCCL_TOO_OLD, {"is version 2.25.1 (expected 2.26.0 or newer)"}},
      {"/nowhere/libnccl.so.2", {"/nowhere/libnccl.so.2", "pip install nvidia-nccl-cu13"}},
      {"libm.so.6", {"has no symbol \"ncclGetVersion\""}}};
  for (const auto& [library, parts] : refused) {
    expect_error(status_of([&, &path = library] { load_nccl(path); }), Code::kEngine, parts);
  }
}

TEST(NcclApiTest, SaysWhichCallHasFailedAndWhy) {
  const NcclApi api = load_nccl(AIACC_FAKE_NCCL_NEW);
  EXPECT_NO_THROW(check_nccl(api, kNcclSuccess, "group_end"));
  EXPECT_EQ("[nccl] group_end failed: an error (and why); NCCL_DEBUG=INFO says more",
            status_of([&] { check_nccl(api, kNcclSystemError, "group_end"); }).message());
}

// The last one: what it maps stays. The library's shared-object name is NCCL's.
TEST(NcclApiTest, TakesTheLibraryThatIsMappedAlready) {
  ASSERT_FALSE(DynamicLibrary::is_mapped("libnccl.so.2"));
  const DynamicLibrary frameworks(AIACC_FAKE_NCCL_NAMED);
  ASSERT_TRUE(DynamicLibrary::is_mapped("libnccl.so.2"));
  EXPECT_EQ(22809, load_nccl("/nowhere/libnccl.so.2").version);
}

}  // namespace
}  // namespace aiacc
