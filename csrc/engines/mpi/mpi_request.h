#pragma once

#include <cstdint>
#include <functional>

#include "csrc/base/spin.h"
#include "csrc/engines/mpi/mpi_plugin.h"

namespace aiacc {

/// Throws Error(kEngine) with MPI's own text if `code` is an error; `call` names what failed.
void check_mpi(const MpiPlugin& plugin, int code, const char* call);

/// Throws when a wait is in vain.
using WaitCheck = std::function<void()>;

/// Waits until `*request` is done and sets it to MPI's null request.
///
/// MPI has no event to sleep on: after spinning this naps between tests, which are also what makes
/// a nonblocking collective progress: for a quarter of the wait so far, 20 us to 250 us times the
/// number of waits in this process. `check` is called before every nap and may throw; `*request` is
/// then still outstanding.
void wait_for_request(const MpiPlugin& plugin,
                      MpiHandle* request,
                      Spin& spin,
                      const WaitCheck& check);

/// Counts the requests that were waited for in this process to their end. Any thread.
std::uint32_t requests_done() noexcept;

/// Runs a collective call that MPI has in a blocking form only, on a thread of its own, and throws
/// what check_mpi throws. `check` is called every few milliseconds and may throw: the call then
/// goes on alone, so it must own all that it reads and writes.
void wait_for_call(const MpiPlugin& plugin,
                   std::function<int()> call,
                   const char* name,
                   const WaitCheck& check);

/// Calls of wait_for_call that have not returned: MPI_Finalize must not be called meanwhile.
int calls_under_way() noexcept;

/// Throws Error(kTimeout) from `timeout_s` after now on; `what` continues "waited ...". `also` is
/// called first.
WaitCheck deadline_check(const char* what, double timeout_s, const WaitCheck& also = {});

}  // namespace aiacc
