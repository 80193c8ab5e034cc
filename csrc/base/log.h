#pragma once

#include <sstream>
#include <string>

namespace aiacc {

enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

/// "trace", "debug", ...; throws Error(kInvalidArgument) for another word.
LogLevel log_level_from(const std::string& name);

/// Which messages are written from now on, and as whom (`rank` < 0: unknown). Any thread.
void configure_log(LogLevel level, int rank) noexcept;

bool log_enabled(LogLevel level) noexcept;

/// "[aiacc 12:00:00.123 rank 0 warning] text\n", as it goes to standard error.
std::string format_log_line(LogLevel level, int rank, const std::string& text);

/// One line, written by one system call when it is destroyed, so that lines of threads and
/// processes do not mix. Never throws: a message that cannot be written soon is lost, and the next
/// one says so.
class LogLine {
 public:
  explicit LogLine(LogLevel level) : level_(level) {}
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  ~LogLine();

  std::ostream& stream() { return text_; }

 private:
  LogLevel level_;
  std::ostringstream text_;
};

}  // namespace aiacc

/// AIACC_LOG(kWarning) << "text"; what is streamed is evaluated only when the level is on.
#define AIACC_LOG(level)                                 \
  if (!::aiacc::log_enabled(::aiacc::LogLevel::level)) { \
  } else                                                 \
    ::aiacc::LogLine(::aiacc::LogLevel::level).stream()
