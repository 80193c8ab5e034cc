#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "csrc/engines/cancellation.h"
#include "csrc/engines/engine.h"

/// Loads MPI and the plug-in that was compiled for it, and keeps the one MPI session of the
/// process. Nothing here needs MPI before `load_mpi`. Any thread; calls that block hold a lock.
namespace aiacc {

/// Opens the MPI library at `library` (or the one that the process has mapped already, whatever
/// its path) and the plug-in at `plugin`, without initialising MPI. Returns "" or the reason why
/// the `mpi` engine cannot be used, with the remedy. Idempotent after a success.
std::string load_mpi(const std::string& plugin, const std::string& library);

/// Whether `load_mpi` has succeeded.
Viability mpi_viability();

struct MpiIdentity {
  int rank = 0;
  int size = 1;
  std::string version;  ///< of the library, in its own words
};

/// Initialises MPI unless somebody did, and meets the other ranks. Collective, blocks; idempotent.
///
/// `network_lanes`: how many independent channels to other hosts MPI should have; 0 for its own
/// default, right when all ranks are on one host. A rank that never calls MPI_Init blocks the
/// others inside MPI; after that, `timeout_s` bounds the wait. At the end of the process MPI is
/// finalised if it was initialised here. Throws Error.
MpiIdentity mpi_initialize(int network_lanes, double timeout_s);

/// Takes the memory and the communicators that an engine of all ranks with so many lanes will need,
/// after `mpi_initialize`; for 0 the ranks only meet, as they do for an engine of all of them.
/// Collective, blocks. Throws Error(kEngine) on every rank if one has not enough; nothing is lost
/// then.
void mpi_reserve(int lanes);

/// The end of the process leaves MPI as it is, so that mpirun sees that it has died. Never blocks.
void mpi_leave_unfinished();

/// Every rank's payload in rank order. Collective, blocks; after `mpi_initialize`. Throws Error.
std::vector<std::string> mpi_all_gather(const std::string& payload);

/// The engine `mpi`; calls `mpi_initialize` if nobody did. Collective, blocks. Throws Error.
std::unique_ptr<Engine> create_mpi_engine(const EngineContext& context);

/// The same among some ranks of the job, after `mpi_initialize`. `split_id` is a number that no
/// other call, and no split of an engine, has had since the last engine of all ranks was made or
/// the last `mpi_reserve`.
/// Collective over `ranks`, blocks; throws the status of `interrupt` once it is set.
std::unique_ptr<Engine> create_mpi_engine(const EngineContext& context,
                                          const std::vector<int>& ranks,
                                          std::uint32_t split_id,
                                          const Cancellation& interrupt);

}  // namespace aiacc
