/* The C interface in a process without runtime, compiled as C11. What needs ranks is in
 * c_api_job.c. */

#include "csrc/bindings/c_api.h"

#include "tests/cpp/bindings/c_expect.h"

char failure[FAILURE_BYTES];

static int calls;

static void count(void* context, const aiacc_status* status) {
  (void)context;
  (void)status;
  ++calls;
}

static aiacc_submission barrier(void) {
  aiacc_submission submission = AIACC_SUBMISSION_INIT;
  submission.kind = AIACC_BARRIER;
  submission.done = count;
  return submission;
}

static int versions_are_known(void) {
  EXPECT(aiacc_abi_version() == AIACC_ABI_VERSION);
  EXPECT(strchr(aiacc_version(), '.') != NULL);
  return 0;
}

static int questions_are_refused(void) {
  int32_t number = 7;
  int done = 7;
  EXPECT(strcmp(aiacc_last_error(), "") == 0);
  EXPECT(aiacc_is_initialized() == 0);
  EXPECT_REFUSED(aiacc_rank(&number), AIACC_SHUTDOWN, "has not been initialized");
  EXPECT(aiacc_size(&number) == AIACC_SHUTDOWN);
  EXPECT(aiacc_local_rank(&number) == AIACC_SHUTDOWN);
  EXPECT(aiacc_local_size(&number) == AIACC_SHUTDOWN);
  EXPECT(aiacc_cross_rank(&number) == AIACC_SHUTDOWN);
  EXPECT(aiacc_cross_size(&number) == AIACC_SHUTDOWN);
  EXPECT(aiacc_process_set_size(0, &number) == AIACC_SHUTDOWN);
  EXPECT(aiacc_process_set_ranks(0, &number, 1) == AIACC_SHUTDOWN);
  EXPECT(aiacc_flush() == AIACC_SHUTDOWN);
  EXPECT(aiacc_poll(1, &done) == AIACC_SHUTDOWN);
  EXPECT(aiacc_wait(1) == AIACC_SHUTDOWN);
  EXPECT(number == 7 && done == 7);
  return 0;
}

static int submissions_are_refused(void) {
  aiacc_submission submission = barrier();
  int64_t handle = 7;
  EXPECT_REFUSED(aiacc_submit(&submission, &handle), AIACC_SHUTDOWN, "has not been initialized");
  EXPECT(handle == 7);
  EXPECT_REFUSED(aiacc_submit(NULL, &handle), AIACC_INVALID_ARGUMENT, "submission NULL");
  submission.done = NULL;
  EXPECT_REFUSED(aiacc_submit(&submission, NULL), AIACC_INVALID_ARGUMENT, "neither done nor");
  EXPECT(calls == 0);
  return 0;
}

static int sizes_are_checked(void) {
  struct {
    aiacc_submission submission;
    int64_t later;
  } longer = {AIACC_SUBMISSION_INIT, 0};
  const size_t wrong[] = {0, sizeof(aiacc_submission) - 1, (size_t)1 << 40};
  longer.submission = barrier();
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    longer.submission.size = wrong[i];
    EXPECT_REFUSED(aiacc_submit(&longer.submission, NULL), AIACC_INVALID_ARGUMENT, "of size");
  }
  longer.submission.size = sizeof longer;
  EXPECT(aiacc_submit(&longer.submission, NULL) == AIACC_SHUTDOWN);  // so far, it was accepted
  longer.later = 1;
  EXPECT_REFUSED(aiacc_submit(&longer.submission, NULL), AIACC_INVALID_ARGUMENT, "does not know");
  EXPECT(calls == 0);
  return 0;
}

int main(void) {
  const int failed = questions_are_refused() || versions_are_known() || submissions_are_refused() ||
                     sizes_are_checked();
  if (failed) {
    fprintf(stderr, "%s\n", failure);
  }
  return failed;
}
