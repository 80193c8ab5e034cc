#pragma once

#include <cstddef>
#include <cstdint>

/// The only way from the core to MPI. The plug-in (mpi_plugin.cc) is compiled against one MPI and
/// loaded at run time; the core is compiled without. Plain C types: no exception and no C++ object
/// crosses, and MPI's handles travel as bits.
namespace aiacc {

using MpiHandle = std::uint64_t;

/// acc[i] = acc[i] op in[i]; numbers are those of DataType and ReduceOp.
using MpiReduceFunction = void (*)(void* acc, const void* in, std::size_t count, int dtype, int op);

inline constexpr int kMpiPluginAbi = 5;

/// Functions return 0 or an MPI error code that `describe` explains, and never end the process.
/// Those that start a request return at once; buffers belong to MPI until `test` says done.
struct MpiPlugin {
  int abi;
  const char* flavour;  ///< "mpich" or "openmpi": whose headers it was compiled with
  const char* headers;  ///< their version

  void (*describe)(int code, char* text, std::size_t bytes);

  /// Initialises MPI with MPI_THREAD_MULTIPLE unless somebody did. `ours`: whether it was us;
  /// `multiple`: whether threads may call concurrently. `network_lanes` > 0 asks for that many
  /// independent channels to other hosts, where the flavour has them.
  int (*initialize)(int network_lanes, int* ours, int* multiple);
  /// Removes the names of the shared memory that MPI created, which it would leave behind if this
  /// process were killed. To be called when every rank has initialised.
  void (*forget_files)();
  int (*is_finalized)();
  int (*finalize)();
  /// `call` is called by the next MPI_Finalize, whoever calls that, while MPI still works.
  int (*before_finalize)(void (*call)());

  MpiHandle (*world)();
  int (*rank)(MpiHandle communicator, int* rank);
  int (*size)(MpiHandle communicator, int* size);
  /// `*duplicate` is written when the request completes; pass it to `return_errors` then.
  int (*start_duplicate)(MpiHandle communicator, MpiHandle* duplicate, MpiHandle* request);
  /// Errors of this communicator are returned from now on; before, they end the process.
  int (*return_errors)(MpiHandle communicator);
  /// Collective and blocking, like the next one. New communicators return errors.
  int (*duplicate)(MpiHandle communicator, MpiHandle* duplicate);
  /// Among `count` ranks of `communicator`, which alone call it; calls that overlap in time have
  /// different tags.
  int (*create_group)(
      MpiHandle communicator, const int* ranks, int count, int tag, MpiHandle* group);

  /// In place.
  int (*start_all_reduce)(
      MpiHandle communicator, void* data, int count, int dtype, int op, MpiHandle* request);
  int (*start_broadcast)(
      MpiHandle communicator, void* data, int bytes, int root, MpiHandle* request);
  /// In place: the caller's part lies at its offset already.
  int (*start_all_gather)(MpiHandle communicator,
                          void* data,
                          const int* bytes_of,
                          const int* offsets,
                          MpiHandle* request);
  /// Not in place: MPICH 5.0 copies a part of the result onto itself then, and gives up.
  int (*start_reduce_scatter)(MpiHandle communicator,
                              const void* send,
                              void* recv,
                              const int* counts,
                              int dtype,
                              int op,
                              MpiHandle* request);
  /// The pieces for, and of, the ranks lie at the same `offsets` in both buffers.
  int (*start_all_to_all)(MpiHandle communicator,
                          const void* send,
                          const int* send_bytes,
                          void* recv,
                          const int* recv_bytes,
                          const int* offsets,
                          MpiHandle* request);
  int (*start_send)(
      MpiHandle communicator, const void* data, int bytes, int peer, int tag, MpiHandle* request);
  int (*start_receive)(
      MpiHandle communicator, void* data, int bytes, int peer, int tag, MpiHandle* request);
  int (*start_barrier)(MpiHandle communicator, MpiHandle* request);
  int (*test)(MpiHandle* request, int* done);
  /// Lets MPI move what it holds for other ranks, on whatever communicator. Returns at once.
  int (*progress)(MpiHandle communicator);
};

/// Name of the one exported function and its type. Returns null if it does not speak `abi`.
inline constexpr const char* kMpiPluginSymbol = "aiacc_mpi_plugin";
using MpiPluginFactory = const MpiPlugin* (*)(int abi, MpiReduceFunction reduce);

/// Found in the plug-in's file followed by the flavour: readable without loading it.
inline constexpr const char* kMpiFlavourMark = "aiacc-mpi-flavour=";

}  // namespace aiacc
