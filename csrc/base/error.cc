#include "csrc/base/error.h"

#include <cctype>
#include <cstring>

#include "csrc/base/descriptors.h"

namespace aiacc {
namespace {

/// "rank 3", "ranks 3, 4" or "rank(s) 3".
bool names_a_rank(const std::string& text) {
  for (auto at = text.find("rank"); at != std::string::npos; at = text.find("rank", at + 1)) {
    const auto number = text.find_first_not_of("s() ", at + 4);
    if (number != std::string::npos && number > at + 4 &&
        std::isdigit(static_cast<unsigned char>(text[number])) != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace

Error::~Error() = default;

Status current_exception_status() {
  try {
    throw;
  } catch (const Error& error) {
    return error.status();
  } catch (const std::exception& error) {
    return {Code::kInternal, std::string("[core] unexpected exception: ") + error.what()};
  } catch (...) {
    return {Code::kInternal, "[core] unexpected exception of unknown type"};
  }
}

Status reported_by(int rank, const Status& status) {
  if (status.code() == Code::kShutdown || names_a_rank(status.message())) {
    return status;
  }
  return {status.code(), "[core] rank " + std::to_string(rank) + " reports: " + status.message()};
}

Error system_error(Code code, const std::string& what, int error_number) {
  char buffer[128];
  const char* text = strerror_r(error_number, buffer, sizeof buffer);
  const std::string remedy = exhaustion_remedy(error_number);
  return Error(code,
               what + ": " + text + " (errno " + std::to_string(error_number) + ")" +
                   (remedy.empty() ? "" : ": " + remedy));
}

void check_failed(const char* condition, const char* file, int line) {
  throw Error(Code::kInternal,
              std::string("[core] broken invariant: ") + condition + " at " + file + ":" +
                  std::to_string(line) + "; this is a bug in aiacc, please report it");
}

}  // namespace aiacc
