#include "csrc/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "csrc/base/error.h"
#include "tests/cpp/support/interruptions.h"

namespace aiacc {
namespace {

class Log : public testing::Test {
 protected:
  void TearDown() override { configure_log(LogLevel::kWarning, -1); }
};

TEST_F(Log, LineHasClockRankAndLevel) {
  const std::regex with_rank(R"(\[aiacc \d\d:\d\d:\d\d\.\d{3} rank 3 warning\] text\n)");
  EXPECT_TRUE(std::regex_match(format_log_line(LogLevel::kWarning, 3, "text"), with_rank));
  const std::regex without(R"(\[aiacc \d\d:\d\d:\d\d\.\d{3} error\] text\n)");
  EXPECT_TRUE(std::regex_match(format_log_line(LogLevel::kError, -1, "text"), without));
}

TEST_F(Log, WritesFromTheLevelUpAndEvaluatesNothingElse) {
  int evaluated = 0;
  configure_log(LogLevel::kInfo, 2);
  testing::internal::CaptureStderr();
  AIACC_LOG(kDebug) << "hidden" << ++evaluated;
  AIACC_LOG(kInfo) << "shown " << 7;
  bool other = false;
  if (log_enabled(LogLevel::kTrace))
    AIACC_LOG(kError) << "not reached";
  else  // of this `if`: the macro is one statement
    other = true;
  EXPECT_TRUE(other);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(std::regex_match(text, std::regex(R"([^\n]* rank 2 info\] shown 7\n)"))) << text;
  EXPECT_EQ(evaluated, 0);
}

TEST_F(Log, WaitsForNobodyWhoDoesNotRead) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const std::string page(4096, 'x');
  while (write(ends[1], page.data(), page.size()) > 0) {
  }
  fcntl(ends[1], F_SETFL, 0);  // from now on a write would wait
  const int before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  const Interruptions signals;
  AIACC_LOG(kError) << "lost";
  std::string there(1 << 20, ' ');
  ASSERT_GT(read(ends[0], there.data(), there.size()), 0);
  AIACC_LOG(kError) << "seen";
  dup2(before, STDERR_FILENO);
  there.resize(static_cast<std::size_t>(read(ends[0], there.data(), there.size())));
  EXPECT_NE(there.find("seen (1 lines before it are lost"), std::string::npos) << there;
  for (const int descriptor : {ends[0], ends[1], before}) {
    close(descriptor);
  }
}

TEST_F(Log, LevelsByName) {
  EXPECT_EQ(log_level_from("trace"), LogLevel::kTrace);
  EXPECT_EQ(log_level_from("fatal"), LogLevel::kFatal);
  EXPECT_THROW(log_level_from("loud"), Error);
}

}  // namespace
}  // namespace aiacc
