/*
 * A front-end in C, in a job that Python has started: tests/parallel/test_c_api.py loads this
 * library and calls its functions on every rank. Each returns 0, or 1 with a text in `failure`.
 */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdlib.h>

#include "csrc/bindings/c_api.h"
#include "tests/cpp/bindings/c_expect.h"

#define EXPORT __attribute__((visibility("default")))
#define MANY 64
#define MOST_DIMENSIONS 4

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* Where tensors are, and what waits for all streams there; host memory without. */
static int32_t device = -1;
static void (*drain)(void) = NULL;

/* What the callbacks of one submission have seen. */
typedef struct ticket {
  int done; /* calls */
  int32_t code;
  char message[1024];
  int allocated; /* calls */
  int late;      /* calls of allocate after done */
  int64_t shape[MOST_DIMENSIONS];
  uint32_t dimensions;
  int refuses;
  int32_t memory[256];
  const aiacc_submission* next; /* submitted by `done` */
} ticket;

static void note_done(void* context, const aiacc_status* status) {
  ticket* mine = context;
  const aiacc_submission* next = mine->next;
  pthread_mutex_lock(&mutex);
  ++mine->done;
  mine->code = status->code;
  snprintf(mine->message, sizeof mine->message, "%s", status->message);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  if (next != NULL && aiacc_submit(next, NULL) == AIACC_OK) {
    aiacc_flush();
  }
}

static void* note_shape(void* context, uint32_t tensor, const int64_t* shape, uint32_t dimensions) {
  ticket* mine = context;
  (void)tensor;
  pthread_mutex_lock(&mutex);
  ++mine->allocated;
  mine->late += mine->done;
  mine->dimensions = dimensions;
  memcpy(mine->shape, shape, dimensions * sizeof *shape);
  pthread_mutex_unlock(&mutex);
  return mine->refuses ? NULL : mine->memory;
}

static void wait_for(ticket* mine) {
  pthread_mutex_lock(&mutex);
  while (mine->done == 0) {
    pthread_cond_wait(&changed, &mutex);
  }
  pthread_mutex_unlock(&mutex);
  if (drain != NULL) {
    drain();
  }
}

static int32_t my_rank(void) {
  int32_t rank = -1;
  aiacc_rank(&rank);
  return rank;
}

static aiacc_submission submission_of(aiacc_kind kind,
                                      const char* name,
                                      const aiacc_tensor* tensor,
                                      ticket* mine) {
  aiacc_submission submission = AIACC_SUBMISSION_INIT;
  submission.kind = kind;
  submission.name = name;
  submission.tensors = tensor;
  submission.tensor_count = tensor != NULL ? 1 : 0;
  submission.done = note_done;
  submission.allocate = note_shape;
  submission.context = mine;
  submission.device = tensor != NULL ? device : -1;
  return submission;
}

static aiacc_tensor tensor_of(const int64_t* shape,
                              uint32_t dimensions,
                              void* input,
                              void* output) {
  const aiacc_tensor tensor = {AIACC_INT32, dimensions, shape, input, output};
  return tensor;
}

/* From now on tensors pass for such on this GPU. */
EXPORT void job_use_device(int32_t number, void (*drain_streams)(void)) {
  device = number;
  drain = drain_streams;
}

EXPORT const char* job_failure(void) { return failure; }

EXPORT int job_state(int32_t rank, int32_t size, uint32_t set) {
  int32_t number = -1;
  int32_t ranks[2] = {-1, -1};
  EXPECT(aiacc_is_initialized() == 1);
  EXPECT(aiacc_rank(&number) == AIACC_OK && number == rank);
  EXPECT(aiacc_size(&number) == AIACC_OK && number == size);
  EXPECT(aiacc_local_rank(&number) == AIACC_OK && number == rank);
  EXPECT(aiacc_local_size(&number) == AIACC_OK && number == size);
  EXPECT(aiacc_cross_rank(&number) == AIACC_OK && number == 0);
  EXPECT(aiacc_cross_size(&number) == AIACC_OK && number == 1);
  EXPECT(aiacc_process_set_size(0, &number) == AIACC_OK && number == size);
  EXPECT(aiacc_process_set_ranks(0, ranks, 1) == AIACC_OK && ranks[0] == 0 && ranks[1] == -1);
  EXPECT(aiacc_process_set_size(set, &number) == AIACC_OK && number == 1);
  EXPECT(aiacc_process_set_ranks(set, ranks, 2) == AIACC_OK && ranks[0] == 1 && ranks[1] == -1);
  EXPECT_REFUSED(aiacc_process_set_size(99, &number), AIACC_INVALID_ARGUMENT, "99");
  EXPECT_REFUSED(aiacc_rank(NULL), AIACC_INVALID_ARGUMENT, "NULL");
  return 0;
}

/* Many at once, each told once. `turn` makes the names. */
EXPORT int job_sums(int turn) {
  static ticket tickets[MANY];
  static int32_t values[MANY][5];
  const int64_t shape[] = {5};
  const int32_t rank = my_rank();
  memset(tickets, 0, sizeof tickets);
  for (int i = 0; i < MANY; ++i) {
    char name[32];
    for (int k = 0; k < 5; ++k) {
      values[i][k] = (rank + 1) * (i + k);
    }
    const aiacc_tensor tensor = tensor_of(shape, 1, values[i], values[i]);
    const aiacc_submission submission = submission_of(AIACC_ALLREDUCE, name, &tensor, &tickets[i]);
    int64_t handle = -1;
    snprintf(name, sizeof name, "c.%d.%d", turn, i);
    EXPECT(aiacc_submit(&submission, &handle) == AIACC_OK);
    EXPECT(handle == 0);
  }
  EXPECT(aiacc_flush() == AIACC_OK);
  for (int i = 0; i < MANY; ++i) {
    wait_for(&tickets[i]);
  }
  for (int i = 0; i < MANY; ++i) {
    EXPECT(tickets[i].done == 1 && tickets[i].code == AIACC_OK);
    EXPECT(strcmp(tickets[i].message, "") == 0 && tickets[i].allocated == 0);
    for (int k = 0; k < 5; ++k) {
      EXPECT(values[i][k] == 3 * (i + k));
    }
  }
  return 0;
}

/* A callback submits what comes next. */
EXPORT int job_chain(void) {
  static ticket first, second;
  static int32_t values[2] = {1, 10};
  static const int64_t shape[] = {1};
  static aiacc_tensor tensors[2];
  static aiacc_submission next;
  tensors[0] = tensor_of(shape, 1, &values[0], &values[0]);
  tensors[1] = tensor_of(shape, 1, &values[1], &values[1]);
  next = submission_of(AIACC_ALLREDUCE, "chain.2", &tensors[1], &second);
  first.next = &next;
  const aiacc_submission submission =
      submission_of(AIACC_ALLREDUCE, "chain.1", &tensors[0], &first);
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&second);
  EXPECT(first.done == 1 && second.done == 1 && second.code == AIACC_OK);
  EXPECT(values[0] == 2 && values[1] == 20);
  return 0;
}

/* With handles instead of callbacks, and what meets Python's own operation on the other rank. */
EXPORT int job_wait(const char* name) {
  float value = (float)(my_rank() + 1);
  const aiacc_tensor tensor = {AIACC_FLOAT32, 0, NULL, &value, &value};
  aiacc_submission submission = AIACC_SUBMISSION_INIT;
  int64_t handle = 0;
  int done = 0;
  submission.name = name;
  submission.tensors = &tensor;
  submission.tensor_count = 1;
  submission.op = AIACC_AVERAGE;
  submission.postscale = 10;
  EXPECT(aiacc_submit(&submission, &handle) == AIACC_OK && handle > 0);
  EXPECT_REFUSED(aiacc_submit(&submission, &handle), AIACC_INVALID_ARGUMENT, "already in flight");
  EXPECT(aiacc_wait(handle) == AIACC_OK);
  EXPECT(value == 15.0F);
  EXPECT_REFUSED(aiacc_poll(handle, &done), AIACC_INVALID_ARGUMENT, "not an outstanding handle");
  EXPECT(aiacc_wait(handle) == AIACC_INVALID_ARGUMENT);
  return 0;
}

/* Rank r gives r + 1 rows, then with a handle; then nobody gives any. */
EXPORT int job_gather(void) {
  int32_t rows[2][2] = {{10, 11}, {12, 13}};
  const int32_t rank = my_rank();
  int64_t shape[] = {rank + 1, 2};
  int64_t received[2] = {-1, -1};
  for (int waits = 0; waits < 3; ++waits) {
    ticket mine = {0};
    int64_t handle = 0;
    shape[0] = waits == 2 ? 0 : rank + 1;
    const aiacc_tensor tensor = tensor_of(shape, 2, rows, NULL);
    aiacc_submission submission = submission_of(AIACC_ALLGATHER, "gather", &tensor, &mine);
    submission.received = received;
    if (waits == 1) {
      submission.done = NULL;
    }
    EXPECT(aiacc_submit(&submission, &handle) == AIACC_OK);
    EXPECT(aiacc_flush() == AIACC_OK);
    if (waits == 1) {
      EXPECT(aiacc_wait(handle) == AIACC_OK && mine.done == 0);
      if (drain != NULL) {
        drain();
      }
    } else {
      wait_for(&mine);
      EXPECT(mine.done == 1 && mine.code == AIACC_OK);
    }
    EXPECT(mine.allocated == 1 && mine.late == 0 && mine.dimensions == 2);
    EXPECT(mine.shape[0] == (waits == 2 ? 0 : 3) && mine.shape[1] == 2);
    if (waits < 2) {
      const int32_t expected[] = {10, 11, 10, 11, 12, 13};
      EXPECT(memcmp(mine.memory, expected, sizeof expected) == 0);
      EXPECT(received[0] == 1 && received[1] == 2);
    }
  }
  return 0;
}

/* Every rank sends 1 row to rank 0 and 2 to rank 1. */
EXPORT int job_all_to_all(void) {
  const int32_t rank = my_rank();
  int32_t rows[3] = {100 * rank, 100 * rank + 1, 100 * rank + 2};
  const int64_t shape[] = {3};
  const int64_t splits[] = {1, 2};
  int64_t received[2] = {-1, -1};
  ticket mine = {0};
  const aiacc_tensor tensor = tensor_of(shape, 1, rows, NULL);
  aiacc_submission submission = submission_of(AIACC_ALLTOALL, "exchange", &tensor, &mine);
  submission.splits = splits;
  submission.split_count = 2;
  submission.received = received;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&mine);
  EXPECT(mine.code == AIACC_OK && mine.shape[0] == 2 * (rank + 1));
  EXPECT(received[0] == rank + 1 && received[1] == rank + 1);
  const int32_t expected[2][4] = {{0, 100, 0, 0}, {1, 2, 101, 102}};
  EXPECT(memcmp(mine.memory, expected[rank], 8 * (size_t)(rank + 1)) == 0);
  return 0;
}

/* Broadcast, reduce-scatter of a group, barrier, join. */
EXPORT int job_others(void) {
  const int32_t rank = my_rank();
  const int64_t shape[] = {3};
  int32_t value[3] = {rank, rank + 1, rank + 2};
  int32_t shares[2][2] = {{0}};
  int64_t last = -1;
  ticket told[4] = {{0}};
  aiacc_submission submission = submission_of(AIACC_BARRIER, NULL, NULL, &told[0]);
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&told[0]);

  int32_t received[3] = {0};
  const aiacc_tensor from_one = tensor_of(shape, 1, rank == 1 ? value : NULL, received);
  submission = submission_of(AIACC_BROADCAST, "cast", &from_one, &told[1]);
  submission.root = 1;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&told[1]);
  EXPECT(received[0] == 1 && received[1] == 2 && received[2] == 3);

  const aiacc_tensor group[2] = {tensor_of(shape, 1, value, shares[0]),
                                 tensor_of(shape, 1, received, shares[1])};
  submission = submission_of(AIACC_REDUCESCATTER, "scatter", group, &told[2]);
  submission.tensor_count = 2;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&told[2]);
  EXPECT(shares[0][0] == (rank == 0 ? 1 : 5) && shares[1][0] == (rank == 0 ? 2 : 6));
  EXPECT(rank == 1 || (shares[0][1] == 3 && shares[1][1] == 4));

  submission = submission_of(AIACC_JOIN, NULL, NULL, &told[3]);
  submission.received = &last;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&told[3]);
  EXPECT(last == 0 || last == 1);
  for (int i = 0; i < 4; ++i) {
    EXPECT(told[i].done == 1 && told[i].code == AIACC_OK);
  }
  return 0;
}

/* What this rank does wrong is refused, and nobody is told. */
EXPORT int job_refusals(void) {
  int32_t value[2] = {0, 0};
  const int64_t shape[] = {2};
  const int64_t negative[] = {-2};
  ticket mine = {0};
  aiacc_tensor tensor = tensor_of(shape, 1, value, value);
  const aiacc_submission good = submission_of(AIACC_ALLREDUCE, "refused", &tensor, &mine);
  aiacc_submission bad = good;
#define REFUSED(change, restore, text)                                    \
  change;                                                                 \
  EXPECT_REFUSED(aiacc_submit(&bad, NULL), AIACC_INVALID_ARGUMENT, text); \
  restore;                                                                \
  bad = good
  REFUSED(bad.name = NULL, (void)0, "expected a name");
  REFUSED(bad.name = "", (void)0, "expected a name");
  REFUSED(bad.size = 8, (void)0, "of size 8");
  REFUSED(bad.kind = 7, (void)0, "operation kind 7");
  REFUSED(bad.op = 77, (void)0, "77");
  REFUSED(bad.wire = -1, (void)0, "wire format -1");
  REFUSED(bad.process_set = 99, (void)0, "process set 99");
  REFUSED(bad.tensor_count = 0, (void)0, "tensors: 0");
  REFUSED(bad.tensors = NULL, (void)0, "at NULL");
  REFUSED(bad.split_count = 1, (void)0, "1 splits at NULL");
  REFUSED(tensor.dtype = 99, tensor.dtype = AIACC_INT32, "99");
  REFUSED(tensor.shape = negative, tensor.shape = shape, "extent -2");
  REFUSED(tensor.dimensions = 1000, tensor.dimensions = 1, "1000 dimensions");
  REFUSED(tensor.input = NULL, tensor.input = value, "input of tensor 0 NULL");
  REFUSED(tensor.output = NULL, tensor.output = value, "output of tensor 0 NULL");
  REFUSED(bad.kind = AIACC_ALLGATHER; bad.allocate = NULL, (void)0, "without allocate");
  REFUSED(bad.kind = AIACC_BARRIER, (void)0, "barrier of 1 tensors");
  bad.kind = AIACC_BROADCAST;
  bad.tensor_count = 2;
  EXPECT_REFUSED(aiacc_submit(&bad, NULL), AIACC_INVALID_ARGUMENT, "a group of broadcast");
  EXPECT(mine.done == 0 && mine.allocated == 0);
  return 0;
}

/* Ranks disagree on one; then one has no memory for what it gets. The job goes on. */
EXPORT int job_failures(void) {
  const int32_t rank = my_rank();
  int32_t value[3] = {rank, rank, rank};
  const int64_t shape[] = {rank + 2};
  ticket different = {0};
  ticket full = {0};
  const aiacc_tensor tensor = tensor_of(shape, 1, value, value);
  aiacc_submission submission = submission_of(AIACC_ALLREDUCE, "different", &tensor, &different);
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&different);
  EXPECT(different.done == 1 && different.code == AIACC_MISMATCH);
  EXPECT(strstr(different.message, "'different'") != NULL);

  full.refuses = rank == 1;
  submission = submission_of(AIACC_ALLGATHER, "full", &tensor, &full);
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&full);
  EXPECT(full.done == 1 && full.allocated == 1);
  EXPECT(full.code == (rank == 1 ? AIACC_INVALID_ARGUMENT : AIACC_OK));
  EXPECT(rank == 0 || strstr(full.message, "allocate returned NULL") != NULL);
  EXPECT(rank == 1 || (full.memory[1] == 0 && full.memory[2] == 1 && full.memory[4] == 1));
  return 0;
}

static ticket pending[3];

/* What the other ranks do not submit. */
EXPORT int job_leave_pending(void) {
  static int32_t values[2][1];
  static const int64_t shape[] = {1};
  const char* const names[] = {"pending.0", "pending.1", "pending.2"};
  for (int i = 0; i < 3; ++i) {
    const aiacc_tensor tensor = tensor_of(shape, 1, values[i % 2], values[i % 2]);
    const aiacc_submission submission =
        submission_of(i == 2 ? AIACC_ALLGATHER : AIACC_ALLREDUCE, names[i], &tensor, &pending[i]);
    EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  }
  EXPECT(aiacc_flush() == AIACC_OK);
  return 0;
}

/* That all of it was told of this, once. */
EXPORT int job_pending_failed(int32_t code, const char* text) {
  for (int i = 0; i < 3; ++i) {
    wait_for(&pending[i]);
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT(pending[i].done == 1 && pending[i].code == code);
    EXPECT(strstr(pending[i].message, text) != NULL && pending[i].allocated == 0);
  }
  return 0;
}

/* The same of a call now. */
EXPORT int job_is_over(int32_t code) {
  aiacc_submission submission = submission_of(AIACC_BARRIER, NULL, NULL, &pending[0]);
  EXPECT(aiacc_submit(&submission, NULL) == code);
  EXPECT(pending[0].done == 1);
  return 0;
}
