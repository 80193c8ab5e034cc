#include "csrc/base/dynamic_library.h"

#include <gtest/gtest.h>

#include "tests/cpp/support/errors.h"

namespace aiacc {
namespace {

TEST(DynamicLibrary, CallsAFunctionOfALibrary) {
  const DynamicLibrary math("libm.so.6");
  EXPECT_DOUBLE_EQ(math.function<double(double)>("cbrt")(27.0), 3.0);
  EXPECT_EQ(math.find("aiacc_no_such_symbol"), nullptr);
}

TEST(DynamicLibrary, ErrorsNameTheLibraryAndWhatItHasNot) {
  const auto error_of = [](const char* library) {
    return status_of([&] { DynamicLibrary(library).function<void()>("aiacc_no_such_symbol"); });
  };
  expect_error(error_of("/nowhere/libnothing.so"),
               Code::kEngine,
               {"cannot load /nowhere/libnothing.so", "No such file"});
  expect_error(
      error_of("libm.so.6"), Code::kEngine, {"libm.so.6 has no symbol \"aiacc_no_such_symbol\""});
}

TEST(DynamicLibrary, TellsWhatIsMapped) {
  EXPECT_TRUE(DynamicLibrary::is_mapped("libc.so.6"));
  EXPECT_FALSE(DynamicLibrary::is_mapped("libaiacc_nothing.so"));
}

}  // namespace
}  // namespace aiacc
