#include "csrc/base/dynamic_library.h"

#include <gtest/gtest.h>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

TEST(DynamicLibrary, CallsAFunctionOfALibrary) {
  const DynamicLibrary math("libm.so.6");
  EXPECT_DOUBLE_EQ(math.function<double(double)>("cbrt")(27.0), 3.0);
  EXPECT_EQ(math.find("aiacc_no_such_symbol"), nullptr);
}

TEST(DynamicLibrary, ErrorsNameTheLibraryAndWhatItHasNot) {
  const auto error_of = [](const char* library) {
    try {
      DynamicLibrary(library).function<void()>("aiacc_no_such_symbol");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kEngine);
      return std::string(error.what());
    }
    return std::string("was found");
  };
  const std::string missing = error_of("/nowhere/libnothing.so");
  EXPECT_NE(missing.find("cannot load /nowhere/libnothing.so"), std::string::npos) << missing;
  EXPECT_NE(missing.find("No such file"), std::string::npos) << missing;
  const std::string symbol = error_of("libm.so.6");
  EXPECT_NE(symbol.find("libm.so.6 has no symbol \"aiacc_no_such_symbol\""), std::string::npos);
}

TEST(DynamicLibrary, TellsWhatIsMapped) {
  EXPECT_TRUE(DynamicLibrary::is_mapped("libc.so.6"));
  EXPECT_FALSE(DynamicLibrary::is_mapped("libaiacc_nothing.so"));
}

TEST(DynamicLibrary, MovesItsHandle) {
  DynamicLibrary first("libm.so.6");
  const DynamicLibrary second(std::move(first));
  EXPECT_NE(second.find("cbrt"), nullptr);
  EXPECT_EQ(first.find("cbrt"), nullptr);  // NOLINT(bugprone-use-after-move): that is the test
}

}  // namespace
}  // namespace aiacc
