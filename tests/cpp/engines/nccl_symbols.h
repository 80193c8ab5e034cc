#pragma once

// X(member of NcclApi, function of nccl.h)
#define AIACC_NCCL_SYMBOLS(X)                \
  X(get_unique_id, ncclGetUniqueId)          \
  X(comm_init, ncclCommInitRankConfig)       \
  X(comm_finalize, ncclCommFinalize)         \
  X(comm_destroy, ncclCommDestroy)           \
  X(comm_abort, ncclCommAbort)               \
  X(comm_async_error, ncclCommGetAsyncError) \
  X(comm_register, ncclCommRegister)         \
  X(comm_deregister, ncclCommDeregister)     \
  X(allocate, ncclMemAlloc)                  \
  X(release, ncclMemFree)                    \
  X(group_start, ncclGroupStart)             \
  X(group_end, ncclGroupEnd)                 \
  X(all_reduce, ncclAllReduce)               \
  X(broadcast, ncclBroadcast)                \
  X(all_gather, ncclAllGather)               \
  X(reduce_scatter, ncclReduceScatter)       \
  X(reduce, ncclReduce)                      \
  X(send, ncclSend)                          \
  X(receive, ncclRecv)
