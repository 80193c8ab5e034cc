#pragma once

#include <functional>

#include "csrc/base/spin.h"
#include "csrc/engines/mpi/mpi_plugin.h"

namespace aiacc {

/// Throws Error(kEngine) with MPI's own text if `code` is an error; `call` names what failed.
void check_mpi(const MpiPlugin& plugin, int code, const char* call);

/// Waits until `*request` is done and sets it to MPI's null request.
///
/// MPI has no event to sleep on: after spinning this sleeps for 20 us between tests,
/// which are also what makes a nonblocking collective progress. `check` is called before every
/// sleep and may throw; `*request` is then still outstanding.
void wait_for_request(const MpiPlugin& plugin,
                      MpiHandle* request,
                      Spin& spin,
                      const std::function<void()>& check);

/// A `check` for wait_for_request that throws Error(kTimeout) `timeout_s` from now; `what` continues
/// "waited ...".
std::function<void()> deadline_check(const char* what, double timeout_s);

}  // namespace aiacc
