#include "csrc/base/text.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/cpp/support/text.h"

namespace aiacc {
namespace {

TEST(CutText, EndsWhereACharacterDoes) {
  const std::string text = "a\u00e9\u20ac\U0001f600z";  // of 1, 2, 3, 4 and 1 bytes
  const std::size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  for (std::size_t most = 0; most < std::size(ends); ++most) {
    EXPECT_EQ(cut_text(text, most), text.substr(0, ends[most])) << most;
  }
}

TEST(CutText, OtherBytesFillTheRoom) {
  EXPECT_EQ(cut_text("\x80\x80\x80\x80\x80\x80", 4), "\x80\x80\x80\x80");
  EXPECT_EQ(cut_text("ab\xff\xff", 3), "ab\xff");
}

TEST(JsonText, EscapesWhatJsonDoesNotTake) {
  EXPECT_EQ(json_text("a\"b\\c\n\x1f\u00e9\U0001f600"),
            "a\\\"b\\\\c\\u000a\\u001f\u00e9\U0001f600");
}

TEST(JsonText, ReplacesWhatIsNoUtf8) {
  for (const char* bad :
       {"\x80", "\xff", "\xc3", "\xe2\x82", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    std::string expected;
    for (std::size_t i = 0; i < std::string(bad).size(); ++i) {
      expected += "\\ufffd";
    }
    EXPECT_EQ(json_text(bad), expected);
    EXPECT_TRUE(is_json("\"" + json_text(bad) + "\""));
  }
  EXPECT_EQ(json_text("\xe2"
                      "a"),
            "\\ufffda");
}

}  // namespace
}  // namespace aiacc
