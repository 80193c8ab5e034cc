#pragma once

#include <cstdint>

#include "csrc/base/error.h"

namespace aiacc {

/// Remembers what aiacc_last_error says in this thread, and returns the code.
std::int32_t note_failure(const Status& status) noexcept;

/// Body of a function of the C interface: no C++ exception leaves it.
template <class Body>
std::int32_t answered(Body body) noexcept {
  try {
    body();
    return 0;
  } catch (...) {
    return note_failure(current_exception_status());
  }
}

}  // namespace aiacc
