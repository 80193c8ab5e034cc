#include "csrc/base/error.h"

#include <cstring>

#include "csrc/base/descriptors.h"

namespace aiacc {

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
