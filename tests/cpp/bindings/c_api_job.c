/*
 * A front-end in C, in a job that Python has started: tests/parallel/test_c_api.py loads this
 * library and calls its functions on every rank. Each returns 0, or 1 with a text in `failure`.
 * Here: the life of submissions. What they compute is in c_api_job_collectives.c.
 */
#define _GNU_SOURCE /* pthread_timedjoin_np */

#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/cpp/bindings/c_job.h"

#define MANY 64

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
  EXPECT(aiacc_wait(handle) == AIACC_OK);
  EXPECT(value == 15.0F);
  EXPECT_REFUSED(aiacc_poll(handle, &done), AIACC_INVALID_ARGUMENT, "not an outstanding handle");
  EXPECT(aiacc_wait(handle) == AIACC_INVALID_ARGUMENT);
  return 0;
}

#define WAITERS 3

/* Where several threads wait for one handle. */
typedef struct shared_handle {
  pthread_barrier_t begin;
  int64_t handle;
} shared_handle;

static void* wait_too(void* argument) {
  shared_handle* shared = argument;
  pthread_barrier_wait(&shared->begin);
  return (void*)(intptr_t)aiacc_wait(shared->handle);
}

/* One of the threads that wait for a handle has it, and a submission with a callback has none. */
EXPORT int job_wait_once(void) {
  int32_t memory[1] = {0};
  int32_t value = 1;
  const int64_t shape[] = {1};
  const aiacc_tensor tensor = tensor_of(shape, 1, &value, memory);
  ticket shared_ticket = {0}, told = {0}, late = {0};
  shared_handle shared;
  pthread_t threads[WAITERS];
  int answered[2] = {0, 0};
  aiacc_submission submission = submission_of(AIACC_ALLGATHER, "shared", &tensor, &shared_ticket);
  aiacc_submission barrier = submission_of(AIACC_BARRIER, "threads.wait", NULL, &late);
  submission.done = NULL;
  if (my_rank() == 1) { /* when the threads of the other rank wait, most likely */
    EXPECT(outcome_of(&barrier) == AIACC_OK);
  }
  EXPECT(aiacc_submit(&submission, &shared.handle) == AIACC_OK);
  EXPECT(pthread_barrier_init(&shared.begin, NULL, WAITERS + 1) == 0);
  for (int i = 0; i < WAITERS; ++i) {
    EXPECT(pthread_create(&threads[i], NULL, wait_too, &shared) == 0);
  }
  pthread_barrier_wait(&shared.begin);
  if (my_rank() == 0) {
    EXPECT(outcome_of(&barrier) == AIACC_OK);
  }
  for (int i = 0; i < WAITERS; ++i) {
    void* code = NULL;
    pthread_join(threads[i], &code);
    answered[0] += (intptr_t)code == AIACC_OK;
    answered[1] += (intptr_t)code == AIACC_INVALID_ARGUMENT;
  }
  pthread_barrier_destroy(&shared.begin);
  EXPECT(answered[0] == 1 && answered[1] == WAITERS - 1);
  EXPECT(shared_ticket.allocated == 1);

  submission = submission_of(AIACC_ALLREDUCE, "told", &tensor, &told);
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  int64_t next = shared.handle + (my_rank() == 0 ? 2 : 1); /* they are counted */
  EXPECT_REFUSED(aiacc_wait(next), AIACC_INVALID_ARGUMENT, "not an outstanding handle");
  wait_for(&told);
  EXPECT(told.done == 1 && told.code == AIACC_OK);
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
  REFUSED(bad.device = -2, (void)0, "GPU -2");
  REFUSED(bad.device = INT32_MAX, (void)0, "GPU 2147483647");
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

/* Ranks disagree on a tensor, or on one of a group; then rank 1 has no memory for the second tensor
 * of a group. The job goes on. */
EXPORT int job_failures(void) {
  const int32_t rank = my_rank();
  int32_t value[4] = {rank, rank, rank, rank};
  const int64_t shapes[2][2] = {{rank + 1, 1}, {2, rank == 1 ? 1 : 2}};
  ticket different[2] = {{0}};
  ticket full = {0};
  const aiacc_tensor group[2] = {tensor_of(shapes[0], 2, value, value),
                                 tensor_of(shapes[0], 2, value, NULL)};
  const aiacc_tensor other[2] = {group[0], tensor_of(shapes[1], 2, value, NULL)};
  aiacc_submission submission = submission_of(AIACC_ALLREDUCE, "different", group, &different[0]);
  EXPECT(outcome_of(&submission) == AIACC_MISMATCH);
  EXPECT(strstr(different[0].message, "'different'") != NULL);

  submission = submission_of(AIACC_ALLGATHER, "different.group", other, &different[1]);
  submission.tensor_count = 2;
  EXPECT(outcome_of(&submission) == AIACC_MISMATCH && different[1].allocated == 0);
  EXPECT(strstr(different[1].message, "'different.group'") != NULL);

  full.refuses = rank == 1 ? 1U << 1 : 0;
  submission = submission_of(AIACC_ALLGATHER, "full", group, &full);
  submission.tensor_count = 2;
  EXPECT(outcome_of(&submission) == (rank == 1 ? AIACC_INVALID_ARGUMENT : AIACC_OK));
  EXPECT(full.results[0].allocated == 1 && full.results[1].allocated == 1);
  EXPECT(rank != 1 || strstr(full.message, "allocate returned NULL") != NULL);
  EXPECT(rank != 1 || strstr(full.message, "for tensor 1") != NULL);
  const int32_t expected[] = {0, 1, 1};
  EXPECT(rank == 1 || memcmp(full.results[1].memory, expected, sizeof expected) == 0);
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
    EXPECT_REFUSED(aiacc_submit(&submission, NULL), AIACC_INVALID_ARGUMENT, "already in flight");
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

/* A child of fork knows its parent's ranks, and no more. */
EXPORT int job_child(void) {
  const int32_t rank = my_rank();
  const pid_t child = fork();
  if (child == 0) {
    int32_t number = -1;
    const int answers = aiacc_is_initialized() == 1 && aiacc_rank(&number) == AIACC_OK &&
                        number == rank && aiacc_size(&number) == AIACC_OK && number == 2;
    const int refuses = aiacc_process_set_size(0, &number) == AIACC_INVALID_ARGUMENT &&
                        aiacc_process_set_ranks(0, &number, 1) == AIACC_INVALID_ARGUMENT &&
                        aiacc_flush() == AIACC_INVALID_ARGUMENT;
    _exit(answers && refuses ? 0 : 1);
  }
  int status = -1;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  return 0;
}

/* A thread that waits for a handle, and what it and the callback that started it have seen. */
typedef struct waiter {
  int64_t handle;
  int32_t in_callback;
  int32_t code;
  int returned_early;
  pthread_t thread;
  ticket mine;
} waiter;

static waiter held;

static void wait_here(void* context, const aiacc_status* status) {
  waiter* here = context;
  (void)status;
  here->in_callback = aiacc_wait(here->handle);
  __atomic_store_n(&here->mine.done, 1, __ATOMIC_RELEASE);
}

EXPORT int job_wait_in_callback(void) {
  static int32_t values[2] = {1, 1};
  const int64_t shape[] = {1};
  const aiacc_tensor other = tensor_of(shape, 1, &values[0], &values[0]);
  aiacc_submission submission = submission_of(AIACC_ALLREDUCE, "other", &other, &held.mine);
  submission.done = NULL;
  EXPECT(aiacc_submit(&submission, &held.handle) == AIACC_OK);
  const aiacc_tensor told = tensor_of(shape, 1, &values[1], &values[1]);
  aiacc_submission waits = submission_of(AIACC_ALLREDUCE, "waits", &told, &held.mine);
  waits.done = wait_here;
  waits.context = &held;
  EXPECT(aiacc_submit(&waits, NULL) == AIACC_OK);
  EXPECT(aiacc_wait(held.handle) == AIACC_OK);
  while (__atomic_load_n(&held.mine.done, __ATOMIC_ACQUIRE) == 0) {
    sched_yield();
  }
  EXPECT(held.in_callback == AIACC_INVALID_ARGUMENT);
  return 0;
}

static void* wait_for_handle(void* argument) {
  waiter* here = argument;
  here->code = aiacc_wait(here->handle);
  return NULL;
}

/* As long as this runs the core may use memory. A thread that could return would do so at once. */
static void hold_shutdown(void* context, const aiacc_status* status) {
  waiter* here = context;
  struct timespec until;
  (void)status;
  pthread_create(&here->thread, NULL, wait_for_handle, here);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 300000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  here->returned_early = pthread_timedjoin_np(here->thread, NULL, &until) == 0;
}

/* What only this rank submits, before it shuts down. */
EXPORT int job_hold_shutdown(void) {
  static int32_t values[2];
  static const int64_t shape[] = {1};
  const aiacc_tensor first = tensor_of(shape, 1, &values[0], &values[0]);
  const aiacc_tensor second = tensor_of(shape, 1, &values[1], &values[1]);
  aiacc_submission submission = submission_of(AIACC_ALLREDUCE, "held", &first, &held.mine);
  submission.done = NULL;
  EXPECT(aiacc_submit(&submission, &held.handle) == AIACC_OK);
  submission = submission_of(AIACC_ALLREDUCE, "holds", &second, &held.mine);
  submission.done = hold_shutdown;
  submission.context = &held;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  return 0;
}

EXPORT int job_was_held(void) {
  EXPECT(held.returned_early == 0);
  EXPECT(pthread_join(held.thread, NULL) == 0);
  EXPECT(held.code == AIACC_SHUTDOWN);
  return 0;
}
