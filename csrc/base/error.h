#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace aiacc {

/// What went wrong, in the terms a caller can act on. Python has one exception class per code.
enum class Code {
  kOk,
  kInvalidArgument,  ///< bad input of this rank; nothing was submitted
  kUnsupported,      ///< right input for what aiacc does not offer; nothing was submitted
  kMismatch,   ///< ranks disagree on one tensor; that tensor fails everywhere, the job goes on
  kTimeout,    ///< a deadline passed (start-up, stall limit)
  kPeerLost,   ///< a rank died, froze, or its link is gone; fatal
  kEngine,     ///< the data engine failed, or there is no descriptor left for it; fatal
  kShutdown,   ///< the runtime was shut down while the operation was outstanding
  kInternal,   ///< a broken invariant of aiacc itself; fatal
  kNotFinite,  ///< a rank gave NaN or infinity, and asked for an error; fatal
};

/// Copyable outcome that crosses threads; exceptions never do.
class Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

/// The only exception type that the core throws. Text form:
/// "[component] what happened: value (expected ...); ranks; what to do".
class __attribute__((visibility("default"))) Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  explicit Error(const Status& status) : Error(status.code(), status.message()) {}
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  /// In the core alone, and with it the type: what one library throws, another one catches.
  ~Error() override;

  Code code() const { return code_; }
  Status status() const { return {code_, what()}; }

 private:
  Code code_;
};

/// Converts the exception being handled to a Status. Call inside a catch block only.
Status current_exception_status();

/// What `rank` tells the others of its end: with its rank, unless the text names one already.
Status reported_by(int rank, const Status& status);

/// Error whose text ends in errno's, and in what to do if there are too many files open.
Error system_error(Code code, const std::string& what, int error_number);

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace aiacc

/// Internal invariant, always on.
#define AIACC_CHECK(condition)                               \
  do {                                                       \
    if (!(condition)) {                                      \
      ::aiacc::check_failed(#condition, __FILE__, __LINE__); \
    }                                                        \
  } while (false)
