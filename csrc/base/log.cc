#include "csrc/base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "csrc/base/error.h"
#include "csrc/base/event.h"

namespace aiacc {
namespace {

constexpr std::array<const char*, 6> kNames = {
    "trace", "debug", "info", "warning", "error", "fatal"};

std::atomic<LogLevel> current_level{LogLevel::kWarning};
std::atomic<int> current_rank{-1};

/// Who reads standard error may stand still (a terminal, a collector); a rank that waited for it
/// would be taken for frozen by the others.
constexpr std::chrono::milliseconds kPatience{100};
std::atomic<int> lost{0};

std::string clock_text() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since = now - std::chrono::system_clock::from_time_t(seconds);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  std::tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::snprintf(text.data(),
                text.size(),
                "%02d:%02d:%02d.%03d",
                local.tm_hour,
                local.tm_min,
                local.tm_sec,
                static_cast<int>(millis));
  return text.data();
}

}  // namespace

LogLevel log_level_from(const std::string& name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) {
      return static_cast<LogLevel>(i);
    }
  }
  throw Error(
      Code::kInvalidArgument,
      "[log] level \"" + name + "\" (expected trace, debug, info, warning, error or fatal)");
}

void configure_log(LogLevel level, int rank) noexcept {
  current_level.store(level, std::memory_order_relaxed);
  current_rank.store(rank, std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) noexcept {
  return level >= current_level.load(std::memory_order_relaxed);
}

std::string format_log_line(LogLevel level, int rank, const std::string& text) {
  std::string line = "[aiacc " + clock_text();
  if (rank >= 0) {
    line += " rank " + std::to_string(rank);
  }
  line += std::string(" ") + kNames[static_cast<std::size_t>(level)] + "] " + text + "\n";
  return line;
}

LogLine::~LogLine() {
  try {
    pollfd entry{STDERR_FILENO, POLLOUT, 0};
    if (poll_until(&entry, 1, Clock::now() + kPatience) == 0) {
      ++lost;
      return;
    }
    const int before = lost.exchange(0);
    const std::string missing =
        before == 0 ? ""
                    : " (" + std::to_string(before) + " lines before it are lost: nobody read)";
    const std::string line = format_log_line(
        level_, current_rank.load(std::memory_order_relaxed), text_.str() + missing);
    [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {  // NOLINT(bugprone-empty-catch): a destructor may not throw, and this is the log
  }
}

}  // namespace aiacc
