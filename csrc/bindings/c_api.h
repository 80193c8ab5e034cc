/*
 * The C interface of the core, for front-ends other than Python's: kernels of a framework, for
 * example. Python starts and ends the runtime (aiacc.init, aiacc.shutdown); what is submitted here
 * meets what Python submits in one coordinator, and ranks may mix both.
 *
 * Which library: libaiacc_core.so in the folder of the package, the one that aiacc._core has
 * loaded. `import aiacc` first: a library that needs "libaiacc_core.so" then gets that one by its
 * name. A process can have one runtime; a second copy of the library, loaded from another path,
 * refuses.
 *
 * Threads: any function from any thread, unless it says otherwise. Nothing throws. In a child of
 * fork the parent's runtime still tells ranks and sizes (aiacc_is_initialized to aiacc_cross_size);
 * all else, process sets included, is AIACC_INVALID_ARGUMENT there.
 *
 * Errors: a function that can fail returns a code, 0 (AIACC_OK) for success. The text belongs to
 * the calling thread: see aiacc_last_error. Nothing of an error is to be freed.
 *
 * C11, or C++.
 */
#ifndef AIACC_C_API_H
#define AIACC_C_API_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define AIACC_API __attribute__((visibility("default")))
#else
#define AIACC_API
#endif

/* NOLINTBEGIN(modernize-*): C has no other ways. */
#ifdef __cplusplus
extern "C" {
#endif

/*
 * Of this header. Within a number the interface only grows: functions, members at the end of
 * aiacc_submission, and values of the enumerations. Compare it with aiacc_abi_version() before any
 * other call; the library serves headers of its own number.
 */
#define AIACC_ABI_VERSION 1

/* What went wrong; Python's exception for it. The fatal ones end the job on all ranks. */
typedef enum aiacc_code {
  AIACC_OK = 0,
  AIACC_INVALID_ARGUMENT = 1, /* ValueError: bad input of this rank; nothing was submitted */
  AIACC_UNSUPPORTED = 2,      /* NotImplementedError: nothing was submitted */
  AIACC_MISMATCH = 3,         /* MismatchError: ranks disagree on one operation; it alone fails */
  AIACC_TIMEOUT = 4,          /* CollectiveTimeoutError */
  AIACC_PEER_LOST = 5,        /* PeerLostError: a rank died, froze, or its link is gone; fatal */
  AIACC_ENGINE = 6,           /* EngineError; fatal */
  AIACC_SHUTDOWN = 7,         /* ShutdownError: no runtime, or it was shut down meanwhile */
  AIACC_INTERNAL = 8,         /* CollectiveError: a bug of aiacc; fatal */
  AIACC_NOT_FINITE = 9        /* CollectiveError: NaN or infinity, see AIACC_CHECK_FINITE; fatal */
} aiacc_code;

typedef enum aiacc_kind {
  AIACC_ALLREDUCE = 0,
  AIACC_ALLGATHER = 1,
  AIACC_BROADCAST = 2,
  AIACC_BARRIER = 3,
  AIACC_ALLTOALL = 4,
  AIACC_REDUCESCATTER = 5,
  AIACC_JOIN = 6
} aiacc_kind;

typedef enum aiacc_dtype {
  AIACC_UINT8 = 0,
  AIACC_INT8 = 1,
  AIACC_UINT16 = 2,
  AIACC_INT16 = 3,
  AIACC_INT32 = 4,
  AIACC_INT64 = 5,
  AIACC_FLOAT16 = 6,
  AIACC_FLOAT32 = 7,
  AIACC_FLOAT64 = 8,
  AIACC_BOOL = 9,
  AIACC_BFLOAT16 = 10,
  AIACC_UINT32 = 11,
  AIACC_UINT64 = 12
} aiacc_dtype;

/* Numbered as in Horovod. */
typedef enum aiacc_op {
  AIACC_AVERAGE = 0,
  AIACC_SUM = 1,
  AIACC_ADASUM = 2,
  AIACC_MIN = 3,
  AIACC_MAX = 4,
  AIACC_PRODUCT = 5
} aiacc_op;

/* How float32 travels in an all-reduce; the 8-bit formats between GPUs only. */
typedef enum aiacc_wire {
  AIACC_WIRE_TENSOR = 0, /* as it is */
  AIACC_WIRE_FLOAT16 = 1,
  AIACC_WIRE_BFLOAT16 = 2,
  AIACC_WIRE_FLOAT8_E4M3 = 3,
  AIACC_WIRE_FLOAT8_E5M2 = 4,
  /* Coded, but not by the hierarchical engines for GPUs; plus 256 times a number. In blocks:
     elements of a block, a power of two from 128 to 1024, plus 65536 for stochastic rounding. */
  AIACC_WIRE_INT8_BLOCKS = 5,
  AIACC_WIRE_INT4_BLOCKS = 6,
  AIACC_WIRE_FLOAT8_BLOCKS = 7,
  /* The largest: their density in millionths, up to 100000. */
  AIACC_WIRE_LARGEST = 8,
  /* Random ones, the same on all ranks: likewise, plus 4194304 to make sums right in the mean. Not
     of tensors on GPUs, unless they are staged. */
  AIACC_WIRE_RANDOM = 9
} aiacc_wire;

/* AIACC_ABI_VERSION of the library. Also without a runtime, like the next two. */
AIACC_API uint32_t aiacc_abi_version(void);
/* "0.1.0"; constant. */
AIACC_API const char* aiacc_version(void);
/*
 * Text of the last call of this thread that failed: what happened, what was expected, what to do.
 * Valid until this thread's next call that fails; "" before the first.
 */
AIACC_API const char* aiacc_last_error(void);

/* 1 between aiacc.init and aiacc.shutdown, else 0. */
AIACC_API int aiacc_is_initialized(void);
/* What the functions hvd.rank() and so on return. The pointer is not NULL. */
AIACC_API int32_t aiacc_rank(int32_t* rank);
AIACC_API int32_t aiacc_size(int32_t* size);
AIACC_API int32_t aiacc_local_rank(int32_t* rank);
AIACC_API int32_t aiacc_local_size(int32_t* size);
AIACC_API int32_t aiacc_cross_rank(int32_t* rank);
AIACC_API int32_t aiacc_cross_size(int32_t* size);
/* Members of a process set; 0 is the set of all ranks. AIACC_INVALID_ARGUMENT: there is none. */
AIACC_API int32_t aiacc_process_set_size(uint32_t process_set, int32_t* size);
/* Its ranks, ascending, as far as there is room for them. */
AIACC_API int32_t aiacc_process_set_ranks(uint32_t process_set, int32_t* ranks, size_t room);

/* An outcome. Belongs to the core and is valid while the callback runs that has got it. */
typedef struct aiacc_status {
  int32_t code;        /* aiacc_code, or one that this header does not know: an error */
  const char* message; /* "" with AIACC_OK */
} aiacc_status;

/*
 * The operation is over; nobody reads or writes its memory any more. Called exactly once for every
 * submission that succeeded, also when the job fails or the runtime is shut down. Often it is
 * called before aiacc_submit has returned.
 *
 * On which thread: one that does the core's work, its own or one that waits in the core, Python's
 * main thread included. Others wait meanwhile: it must not block, not throw, not wait for Python's
 * lock (GIL) or an operation, and not end the runtime. It may submit, and ask what does not block.
 * Callbacks may run at the same time, and not in the order of submission.
 *
 * Of tensors on a GPU: the operation is ordered on the stream of the submission. What is queued
 * there from now on sees its results, and may reuse its memory.
 */
typedef void (*aiacc_done)(void* context, const aiacc_status* status);

/*
 * Memory for what all-gather or all-to-all gives for tensor number `tensor` of a submission: the
 * ranks have agreed on the shape, whose first extent only they know together. `shape` is valid
 * while this runs. Called once for each tensor before the operation is over, if that succeeds;
 * perhaps also if it fails later, and never after it is over. What holds for aiacc_done holds for
 * it, except that it may allocate. The result is written there without another copy in host memory;
 * on a GPU the core's own memory is copied there, on the stream. The memory stays the caller's.
 * NULL fails the operation on this rank with AIACC_INVALID_ARGUMENT; other ranks have their
 * results. For a tensor without elements NULL is fine.
 */
typedef void* (*aiacc_allocate)(void* context,
                                uint32_t tensor,
                                const int64_t* shape,
                                uint32_t dimensions);

/* One tensor. Never grows. */
typedef struct aiacc_tensor {
  int32_t dtype; /* aiacc_dtype */
  uint32_t dimensions;
  const int64_t* shape; /* row-major and without gaps; only read by aiacc_submit */
  /*
   * In host memory, or on the GPU `device`; NULL only without elements. Both stay valid, and are
   * left alone, until the operation is over. May be the same. `input`: not read by a broadcast on
   * ranks other than the root. `output`: of all-reduce and broadcast as large as the input; of
   * reduce-scatter this rank's rows (the first `rows % members` members get one more than the
   * others); else ignored.
   */
  const void* input;
  void* output;
} aiacc_tensor;

/*
 * What to do. Start from AIACC_SUBMISSION_INIT, then set what differs. aiacc_submit copies all that
 * it needs, the arrays included.
 */
typedef struct aiacc_submission {
  size_t size;  /* sizeof(aiacc_submission): tells the library which members there are */
  int32_t kind; /* aiacc_kind */
  /*
   * Ranks meet by it. Unique among what is in flight in the process set. Python's operations are
   * "allreduce.NAME" and so on. NULL or "" for barrier (numbered by order) and join (which has
   * none) only.
   */
  const char* name;
  uint32_t process_set;
  /* One for most; more are a group that is ready as a whole (all-reduce, all-gather,
     reduce-scatter); none for barrier and join. */
  uint32_t tensor_count;
  const aiacc_tensor* tensors;
  int32_t op;   /* aiacc_op, of all-reduce and reduce-scatter */
  int32_t wire; /* aiacc_wire */
  double prescale;
  double postscale;
  int32_t root; /* global rank, of broadcast */
  /* All-to-all: rows for each member of the process set. */
  uint32_t split_count;
  const int64_t* splits;
  int32_t device; /* -1: host memory; else this rank's number of the GPU with all tensors */
  void* stream;   /* CUstream that writes the inputs, and after which outputs may be overwritten */
  aiacc_allocate allocate; /* of all-gather and all-to-all, which need it */
  /*
   * NULL, or room for as many numbers as the process set has members, for each tensor, until the
   * operation is over: rows that came from each member (all-gather, all-to-all). Of a join: room
   * for one, the last rank that joined.
   */
  int64_t* received;
  aiacc_done done; /* NULL: the operation has a handle, and aiacc_wait must be called for it */
  void* context;   /* for the callbacks */
} aiacc_submission;

#define AIACC_SUBMISSION_INIT \
  {sizeof(aiacc_submission),  \
   AIACC_ALLREDUCE,           \
   NULL,                      \
   0,                         \
   0,                         \
   NULL,                      \
   AIACC_SUM,                 \
   AIACC_WIRE_TENSOR,         \
   1.0,                       \
   1.0,                       \
   0,                         \
   0,                         \
   NULL,                      \
   -1,                        \
   NULL,                      \
   NULL,                      \
   NULL,                      \
   NULL,                      \
   NULL}

/*
 * Enters an operation; does not wait for other ranks. `handle` may be NULL if there is a callback
 * `done`; it receives 0 then, which is no handle. On an error nothing was submitted and no callback
 * comes. Fails with AIACC_SHUTDOWN without a runtime, and with the cause once the job has failed.
 */
AIACC_API int32_t aiacc_submit(const aiacc_submission* submission, int64_t* handle);

/* What was submitted shall start now, and not wait for company: call it after the last of a batch.
 */
AIACC_API int32_t aiacc_flush(void);

/* Whether aiacc_wait would return at once. Of an unknown handle AIACC_INVALID_ARGUMENT. */
AIACC_API int32_t aiacc_poll(int64_t handle, int* done);

/*
 * Waits until the operation is over, returns its outcome and forgets the handle; a second thread
 * that waits for it meanwhile gets AIACC_INVALID_ARGUMENT. Blocks; not to be called with Python's
 * lock (GIL). In a callback AIACC_INVALID_ARGUMENT. On a GPU: ordered on the submission's stream as
 * with aiacc_done. After aiacc.shutdown handles are gone: AIACC_SHUTDOWN, when nobody reads or
 * writes their memory any more.
 */
AIACC_API int32_t aiacc_wait(int64_t handle);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-*) */

#endif
