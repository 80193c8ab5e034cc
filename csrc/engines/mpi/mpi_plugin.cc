#include "csrc/engines/mpi/mpi_plugin.h"

#include <mpi.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "csrc/base/dtype.h"
#include "csrc/engines/mpi/mpi_types.h"

// Together with mpi_types.cc all that is compiled against an MPI. It is linked to no MPI library:
// its symbols are resolved against the one that the loader has opened, whatever its file is called.

#define AIACC_MPI_TEXT_OF(x) #x
#define AIACC_MPI_TEXT(x) AIACC_MPI_TEXT_OF(x)
#if defined(MPICH_VERSION)
#define AIACC_MPI_FLAVOUR "mpich"
#define AIACC_MPI_HEADERS MPICH_VERSION
#elif defined(OMPI_MAJOR_VERSION)
#define AIACC_MPI_FLAVOUR "openmpi"
#define AIACC_MPI_HEADERS            \
  AIACC_MPI_TEXT(OMPI_MAJOR_VERSION) \
  "." AIACC_MPI_TEXT(OMPI_MINOR_VERSION) "." AIACC_MPI_TEXT(OMPI_RELEASE_VERSION)
#else
#define AIACC_MPI_FLAVOUR "unknown"
#define AIACC_MPI_HEADERS AIACC_MPI_TEXT(MPI_VERSION) "." AIACC_MPI_TEXT(MPI_SUBVERSION)
#endif

namespace aiacc {
namespace {

constexpr const char* kMarkedFlavour = "aiacc-mpi-flavour=" AIACC_MPI_FLAVOUR;

// NOLINTBEGIN(bugprone-sizeof-expression,bugprone-multi-level-implicit-pointer-conversion): a
// handle is a number in one MPI and a pointer in another.
template <class Native>
MpiHandle to_handle(Native native) {
  static_assert(sizeof(Native) <= sizeof(MpiHandle));
  MpiHandle handle = 0;
  std::memcpy(&handle, &native, sizeof native);
  return handle;
}

template <class Native>
Native to_native(MpiHandle handle) {
  Native native;
  std::memcpy(&native, &handle, sizeof native);
  return native;
}
// NOLINTEND(bugprone-sizeof-expression,bugprone-multi-level-implicit-pointer-conversion)

/// Runs an MPI function that starts a request and stores the request's bits.
template <class Start>
int started(MpiHandle* handle, Start start) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = start(&request);
  *handle = to_handle(request);
  return code;
}

// ---- life -------------------------------------------------------------------------------------

void describe(int code, char* text, std::size_t bytes) {
  char buffer[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, buffer, &length) != MPI_SUCCESS) {
    length = 0;
  }
  std::snprintf(text, bytes, "%.*s", length, length > 0 ? buffer : "unknown MPI error");
}

/// MPICH opens one connection per peer and *virtual communication interface*, and spreads
/// communicators over the interfaces in the order of their creation. Only its ofi network module
/// is known to work with several. What the user has set stays.
void set_network_lanes(int network_lanes) {
#if defined(MPICH_VERSION)
  if (network_lanes > 0) {
    setenv("MPIR_CVAR_CH4_NUM_VCIS", std::to_string(network_lanes).c_str(), 0);
    setenv("MPIR_CVAR_CH4_NETMOD", "ofi", 0);
  }
#else
  static_cast<void>(network_lanes);
#endif
}

int initialize(int network_lanes, int* ours, int* multiple) {
  int before = 0;
  int code = MPI_Initialized(&before);
  if (code != MPI_SUCCESS) {
    return code;
  }
  int provided = MPI_THREAD_SINGLE;
  if (before == 0) {
    set_network_lanes(network_lanes);
    code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  } else {
    code = MPI_Query_thread(&provided);
  }
  *ours = before == 0 ? 1 : 0;
  *multiple = provided == MPI_THREAD_MULTIPLE ? 1 : 0;
  return code != MPI_SUCCESS ? code : create_mpi_types();
}

void forget_files() {
#if defined(MPICH_VERSION)
  static const std::string kPrefix = "/dev/shm/mpich_";
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t at = line.find(kPrefix);
    if (at != std::string::npos && line.find(" (deleted)") == std::string::npos) {
      unlink(line.substr(at).c_str());  // another rank of the node may have been faster
    }
  }
#endif
}

int is_finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag;
}

void (*finalize_call)() = nullptr;

/// MPI_Finalize begins by deleting the attributes of MPI_COMM_SELF.
int before_finalize(void (*call)()) {
  finalize_call = call;
  int key = MPI_KEYVAL_INVALID;
  const auto deleted = [](MPI_Comm, int, void*, void*) {
    finalize_call();
    return MPI_SUCCESS;
  };
  int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, deleted, &key, nullptr);
  if (code == MPI_SUCCESS) {
    code = MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
    MPI_Comm_free_keyval(&key);  // the attribute keeps what it needs
  }
  return code;
}

// ---- communicators ----------------------------------------------------------------------------

/// Hands a new communicator out with errors that are returned instead of ending the process.
int handed_out(int code, MPI_Comm communicator, MpiHandle* handle) {
  *handle = to_handle(communicator);
  return code != MPI_SUCCESS ? code : MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
}

int comm_rank(MpiHandle communicator, int* rank) {
  return MPI_Comm_rank(to_native<MPI_Comm>(communicator), rank);
}

int comm_size(MpiHandle communicator, int* size) {
  return MPI_Comm_size(to_native<MPI_Comm>(communicator), size);
}

int return_errors_of(MpiHandle communicator) {
  return MPI_Comm_set_errhandler(to_native<MPI_Comm>(communicator), MPI_ERRORS_RETURN);
}

int start_duplicate(MpiHandle communicator, MpiHandle* duplicate, MpiHandle* request) {
  static_assert(sizeof(MPI_Comm) <= sizeof(MpiHandle));
  *duplicate = 0;
  return started(request, [&](MPI_Request* native) {
    return MPI_Comm_idup(
        to_native<MPI_Comm>(communicator), reinterpret_cast<MPI_Comm*>(duplicate), native);
  });
}

int duplicate(MpiHandle communicator, MpiHandle* copy) {
  MPI_Comm native = MPI_COMM_NULL;
  const int code = MPI_Comm_dup(to_native<MPI_Comm>(communicator), &native);
  return handed_out(code, native, copy);
}

int create_group(MpiHandle communicator, const int* ranks, int count, int tag, MpiHandle* part) {
  const auto parent = to_native<MPI_Comm>(communicator);
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  MPI_Comm native = MPI_COMM_NULL;
  int code = MPI_Comm_group(parent, &all);
  if (code == MPI_SUCCESS) {
    code = MPI_Group_incl(all, count, ranks, &some);
    MPI_Group_free(&all);
  }
  if (code == MPI_SUCCESS) {
    code = MPI_Comm_create_group(parent, some, tag, &native);
    MPI_Group_free(&some);
  }
  return handed_out(code, native, part);
}

// ---- collectives ------------------------------------------------------------------------------

int start_all_reduce(
    MpiHandle communicator, void* data, int count, int dtype, int op, MpiHandle* request) {
  const auto type = static_cast<DataType>(dtype);
  return started(request, [&](MPI_Request* native) {
    return MPI_Iallreduce(MPI_IN_PLACE,
                          data,
                          count,
                          mpi_type(type),
                          mpi_op(type, static_cast<ReduceOp>(op)),
                          to_native<MPI_Comm>(communicator),
                          native);
  });
}

int start_broadcast(MpiHandle communicator, void* data, int bytes, int root, MpiHandle* request) {
  return started(request, [&](MPI_Request* native) {
    return MPI_Ibcast(data, bytes, MPI_BYTE, root, to_native<MPI_Comm>(communicator), native);
  });
}

int start_all_gather(MpiHandle communicator,
                     void* data,
                     const int* bytes_of,
                     const int* offsets,
                     MpiHandle* request) {
  return started(request, [&](MPI_Request* native) {
    return MPI_Iallgatherv(MPI_IN_PLACE,
                           0,
                           MPI_DATATYPE_NULL,
                           data,
                           bytes_of,
                           offsets,
                           MPI_BYTE,
                           to_native<MPI_Comm>(communicator),
                           native);
  });
}

int start_reduce_scatter(MpiHandle communicator,
                         const void* send,
                         void* recv,
                         const int* counts,
                         int dtype,
                         int op,
                         MpiHandle* request) {
  const auto type = static_cast<DataType>(dtype);
  return started(request, [&](MPI_Request* native) {
    return MPI_Ireduce_scatter(send,
                               recv,
                               counts,
                               mpi_type(type),
                               mpi_op(type, static_cast<ReduceOp>(op)),
                               to_native<MPI_Comm>(communicator),
                               native);
  });
}

int start_all_to_all(MpiHandle communicator,
                     const void* send,
                     const int* send_bytes,
                     void* recv,
                     const int* recv_bytes,
                     const int* offsets,
                     MpiHandle* request) {
  return started(request, [&](MPI_Request* native) {
    return MPI_Ialltoallv(send,
                          send_bytes,
                          offsets,
                          MPI_BYTE,
                          recv,
                          recv_bytes,
                          offsets,
                          MPI_BYTE,
                          to_native<MPI_Comm>(communicator),
                          native);
  });
}

int start_send(
    MpiHandle communicator, const void* data, int bytes, int peer, int tag, MpiHandle* request) {
  return started(request, [&](MPI_Request* native) {
    return MPI_Isend(data, bytes, MPI_BYTE, peer, tag, to_native<MPI_Comm>(communicator), native);
  });
}

int start_receive(
    MpiHandle communicator, void* data, int bytes, int peer, int tag, MpiHandle* request) {
  return started(request, [&](MPI_Request* native) {
    return MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, to_native<MPI_Comm>(communicator), native);
  });
}

int start_barrier(MpiHandle communicator, MpiHandle* request) {
  return started(request, [&](MPI_Request* native) {
    return MPI_Ibarrier(to_native<MPI_Comm>(communicator), native);
  });
}

int test(MpiHandle* request, int* done) {
  auto native = to_native<MPI_Request>(*request);
  const int code = MPI_Test(&native, done, MPI_STATUS_IGNORE);
  *request = to_handle(native);
  return code;
}

int progress(MpiHandle communicator) {
  // MPI promises no more tags than this one, which no message has.
  constexpr int kNoTag = 32767;
  int found = 0;
  return MPI_Iprobe(
      MPI_ANY_SOURCE, kNoTag, to_native<MPI_Comm>(communicator), &found, MPI_STATUS_IGNORE);
}

constexpr MpiPlugin kPlugin = {
    kMpiPluginAbi,
    AIACC_MPI_FLAVOUR,
    AIACC_MPI_HEADERS,
    describe,
    initialize,
    forget_files,
    is_finalized,
    [] { return MPI_Finalize(); },
    before_finalize,
    [] { return to_handle(MPI_COMM_WORLD); },
    comm_rank,
    comm_size,
    start_duplicate,
    return_errors_of,
    duplicate,
    create_group,
    start_all_reduce,
    start_broadcast,
    start_all_gather,
    start_reduce_scatter,
    start_all_to_all,
    start_send,
    start_receive,
    start_barrier,
    test,
    progress,
};

}  // namespace
}  // namespace aiacc

extern "C" __attribute__((visibility("default"))) const aiacc::MpiPlugin* aiacc_mpi_plugin(
    int abi, aiacc::MpiReduceFunction reduce) {
  static const char* const volatile mark = aiacc::kMarkedFlavour;  // keeps the text in the file
  if (abi != aiacc::kMpiPluginAbi || mark == nullptr) {
    return nullptr;
  }
  aiacc::set_reduce_function(reduce);
  return &aiacc::kPlugin;
}
