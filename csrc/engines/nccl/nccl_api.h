#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/cuda/driver.h"

/// NCCL's functions that aiacc calls, as a table: the library that the framework brought is loaded
/// at run time, whatever its version; tests bring their own. Types and numbers have the binary form
/// of those in nccl.h of version 2.32, which is not needed to compile this.
namespace aiacc {

using NcclResult = int;
using NcclComm = struct NcclCommTag*;

struct NcclUniqueId {
  char internal[128];
};

inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclSystemError = 2;
inline constexpr NcclResult kNcclInternalError = 3;
inline constexpr NcclResult kNcclInvalidArgument = 4;
inline constexpr NcclResult kNcclInvalidUsage = 5;
inline constexpr NcclResult kNcclRemoteError = 6;
inline constexpr NcclResult kNcclInProgress = 7;

enum NcclDataType : int {
  kNcclInt8 = 0,
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclUint32 = 3,
  kNcclInt64 = 4,
  kNcclUint64 = 5,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9,
  kNcclFloat8e4m3 = 10,
  kNcclFloat8e5m2 = 11,
};

enum NcclRedOp : int {
  kNcclSum = 0,
  kNcclProd = 1,
  kNcclMax = 2,
  kNcclMin = 3,
};

/// Version as ncclGetVersion tells it.
constexpr int nccl_version_code(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}
inline constexpr int kNcclHeaderVersion =
    nccl_version_code(2, 32, 3);  ///< what this file describes
inline constexpr int kNcclLeastVersion = nccl_version_code(2, 26, 0);

inline constexpr int kNcclUndefined = INT_MIN;
inline constexpr unsigned kNcclMagic = 0xcafebeef;

/// Settings of a communicator. Libraries read as much of it as they know, so that one form serves
/// older and newer ones; the comments name the first version that reads a member, where it is not
/// 2.26.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = kNcclMagic;
  unsigned version = kNcclHeaderVersion;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
  int traffic_class = kNcclUndefined;
  const char* comm_name = nullptr;             ///< 2.27
  int collnet_enable = kNcclUndefined;         ///< 2.27
  int cta_policy = kNcclUndefined;             ///< 2.27
  int shrink_share = kNcclUndefined;           ///< 2.27
  int nvls_ctas = kNcclUndefined;              ///< 2.27
  int channels_per_net_peer = kNcclUndefined;  ///< 2.28
  int nvlink_centric_sched = kNcclUndefined;   ///< 2.28
  int graph_usage_mode = kNcclUndefined;       ///< 2.29
  int rma_contexts = kNcclUndefined;           ///< 2.29
  int max_p2p_peers = kNcclUndefined;          ///< 2.30
  int graph_stream_ordering = kNcclUndefined;  ///< 2.30
  int launch_order_implicit = kNcclUndefined;  ///< 2.31
  int rma_signals = kNcclUndefined;            ///< 2.31
  int rma_eager_init = kNcclUndefined;         ///< 2.31
  int host_cft_mode = kNcclUndefined;          ///< 2.31
  int nvls_host_mode = kNcclUndefined;         ///< 2.32
};
static_assert(sizeof(NcclConfig) == 120 && offsetof(NcclConfig, net_name) == 32 &&
                  offsetof(NcclConfig, comm_name) == 48 &&
                  offsetof(NcclConfig, launch_order_implicit) == 96,
              "the binary form of ncclConfig_t");

/// Settings of one collective, since 2.31; the same on all ranks.
struct NcclCollConfig {
  std::size_t size = sizeof(NcclCollConfig);
  unsigned magic = kNcclMagic;
  unsigned version = kNcclHeaderVersion;
  void* extensions = nullptr;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;  ///< at most the communicator's
  int nvls_ctas = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  const char* algorithms = nullptr;  ///< "ring", "tree", "tree,ring", ...; null: NCCL chooses
  int force_algorithms = 1;          ///< 0: choose another one rather than fail
  int cta_policy = kNcclUndefined;
  std::uint64_t profiler_tag = 0;
  CudaEvent launch_completion_event = nullptr;  ///< 2.32
};
static_assert(sizeof(NcclCollConfig) == 72 && offsetof(NcclCollConfig, algorithms) == 40,
              "the binary form of ncclCollConfig_t");

/// nccl.h documents the functions under the names that stand in nccl_api.cc. Those that name a
/// communicator are called by one thread at a time. With `blocking = 0` they may return
/// kNcclInProgress; `comm_async_error` tells when that is over.
struct NcclApi {
  int version = 0;  ///< of the library

  NcclResult (*get_unique_id)(NcclUniqueId* id);
  NcclResult (*comm_init)(NcclComm* comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config);
  NcclResult (*comm_finalize)(NcclComm comm);
  NcclResult (*comm_destroy)(NcclComm comm);
  /// The only one that another thread may call while one is in a call on `comm`, if that does not
  /// block.
  NcclResult (*comm_abort)(NcclComm comm);
  NcclResult (*comm_async_error)(NcclComm comm, NcclResult* error);
  NcclResult (*comm_register)(NcclComm comm, void* buffer, std::size_t bytes, void** handle);
  NcclResult (*comm_deregister)(NcclComm comm, void* handle);
  NcclResult (*allocate)(void** memory, std::size_t bytes);
  NcclResult (*release)(void* memory);
  const char* (*error_string)(NcclResult result);
  const char* (*last_error)(NcclComm comm);  ///< null is allowed

  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*all_reduce)(const void* send,
                           void* recv,
                           std::size_t count,
                           NcclDataType dtype,
                           NcclRedOp op,
                           NcclComm comm,
                           CudaStream stream);
  NcclResult (*broadcast)(const void* send,
                          void* recv,
                          std::size_t count,
                          NcclDataType dtype,
                          int root,
                          NcclComm comm,
                          CudaStream stream);
  NcclResult (*all_gather)(const void* send,
                           void* recv,
                           std::size_t send_count,
                           NcclDataType dtype,
                           NcclComm comm,
                           CudaStream stream);
  NcclResult (*reduce_scatter)(const void* send,
                               void* recv,
                               std::size_t recv_count,
                               NcclDataType dtype,
                               NcclRedOp op,
                               NcclComm comm,
                               CudaStream stream);
  NcclResult (*reduce)(const void* send,
                       void* recv,
                       std::size_t count,
                       NcclDataType dtype,
                       NcclRedOp op,
                       int root,
                       NcclComm comm,
                       CudaStream stream);
  NcclResult (*send)(const void* buffer,
                     std::size_t count,
                     NcclDataType dtype,
                     int peer,
                     NcclComm comm,
                     CudaStream stream);
  NcclResult (*receive)(void* buffer,
                        std::size_t count,
                        NcclDataType dtype,
                        int peer,
                        NcclComm comm,
                        CudaStream stream);

  /// Null before 2.31: the algorithm cannot be chosen per call then.
  NcclResult (*all_reduce_config)(const void* send,
                                  void* recv,
                                  std::size_t count,
                                  NcclDataType dtype,
                                  NcclRedOp op,
                                  NcclComm comm,
                                  CudaStream stream,
                                  const NcclCollConfig* config);
};

/// Loads NCCL for good and looks its functions up: the library of that name that the process has
/// mapped already, whatever its path, since there must not be two; else `library`. Needs no GPU.
/// Throws Error(kEngine), with the remedy, if there is none, a function is missing, or it is older
/// than kNcclLeastVersion.
NcclApi load_nccl(const std::string& library = "libnccl.so.2");

/// Version of the library that this process uses, which is loaded for it. Throws what load_nccl
/// does.
int nccl_version();

/// Throws Error(kEngine) with NCCL's words unless `result` is success. kNcclInProgress is a failure
/// here: who makes calls that do not block looks for it first.
void check_nccl(const NcclApi& api, NcclResult result, const char* call);

/// "2.27.7" for 22707.
std::string nccl_version_text(int version);

}  // namespace aiacc

/// AIACC_NCCL_CHECK(api, group_end): calls, and throws what check_nccl does.
#define AIACC_NCCL_CHECK(api, function, ...) \
  ::aiacc::check_nccl((api), (api).function(__VA_ARGS__), #function)
