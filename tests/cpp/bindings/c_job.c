#define _POSIX_C_SOURCE 200809L

#include "tests/cpp/bindings/c_job.h"

#include <pthread.h>

char failure[FAILURE_BYTES];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* Where tensors are, and what waits for all streams there; host memory without. */
static int32_t device = -1;
static void (*drain)(void) = NULL;

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
  result* to = &mine->results[tensor];
  pthread_mutex_lock(&mutex);
  ++mine->allocated;
  ++to->allocated;
  mine->late += mine->done;
  to->dimensions = dimensions;
  memcpy(to->shape, shape, dimensions * sizeof *shape);
  pthread_mutex_unlock(&mutex);
  return (mine->refuses >> tensor & 1U) != 0 ? NULL : to->memory;
}

void wait_for(ticket* mine) {
  pthread_mutex_lock(&mutex);
  while (mine->done == 0) {
    pthread_cond_wait(&changed, &mutex);
  }
  pthread_mutex_unlock(&mutex);
  see_results();
}

int32_t outcome_of(const aiacc_submission* submission) {
  ticket* mine = submission->context;
  const int32_t refusal = aiacc_submit(submission, NULL);
  if (refusal != AIACC_OK) {
    return refusal;
  }
  wait_for(mine);
  return mine->done == 1 ? mine->code : -1;
}

void see_results(void) {
  if (drain != NULL) {
    drain();
  }
}

int32_t my_rank(void) {
  int32_t rank = -1;
  aiacc_rank(&rank);
  return rank;
}

aiacc_submission submission_of(aiacc_kind kind,
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

aiacc_tensor tensor_of(const int64_t* shape, uint32_t dimensions, void* input, void* output) {
  const aiacc_tensor tensor = {AIACC_INT32, dimensions, shape, input, output};
  return tensor;
}

/* From now on tensors pass for such on this GPU. */
EXPORT void job_use_device(int32_t number, void (*drain_streams)(void)) {
  device = number;
  drain = drain_streams;
}

EXPORT const char* job_failure(void) { return failure; }
