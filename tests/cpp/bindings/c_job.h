/* What the functions of the front-end in C share: submissions, and what their callbacks have seen.
 */
#ifndef AIACC_TESTS_C_JOB_H
#define AIACC_TESTS_C_JOB_H

#include "csrc/bindings/c_api.h"
#include "tests/cpp/bindings/c_expect.h"

#define EXPORT __attribute__((visibility("default")))
#define MOST_TENSORS 4
#define MOST_DIMENSIONS 4
#define MOST_BYTES 1024

/* What all-gather or all-to-all has given for one tensor. */
typedef struct result {
  int allocated; /* calls */
  uint32_t dimensions;
  int64_t shape[MOST_DIMENSIONS];
  _Alignas(16) char memory[MOST_BYTES];
} result;

/* What the callbacks of one submission have seen. */
typedef struct ticket {
  int done; /* calls */
  int32_t code;
  char message[1024];
  int allocated; /* calls, for all tensors */
  int late;      /* those after done */
  result results[MOST_TENSORS];
  unsigned refuses;             /* bit t: gives no memory for tensor t */
  const aiacc_submission* next; /* submitted by `done` */
} ticket;

/* Returns when the ticket's submission is over, and its results can be seen. */
void wait_for(ticket* mine);
/* Submits and waits; the code of which the ticket was told, once, or of the refusal. */
int32_t outcome_of(const aiacc_submission* submission);
/* The same without a ticket. */
void see_results(void);

int32_t my_rank(void);

/* Of one tensor, or of none, with the callbacks of the ticket. */
aiacc_submission submission_of(aiacc_kind kind,
                               const char* name,
                               const aiacc_tensor* tensor,
                               ticket* mine);

/* Of int32. */
aiacc_tensor tensor_of(const int64_t* shape, uint32_t dimensions, void* input, void* output);

#endif
