/* What the functions of c_api_job.c are to those who wait, these are to what is computed: every
 * kind of operation, among all ranks. */
#include "tests/cpp/bindings/c_job.h"

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
      see_results();
    } else {
      wait_for(&mine);
      EXPECT(mine.done == 1 && mine.code == AIACC_OK);
    }
    EXPECT(mine.allocated == 1 && mine.late == 0 && mine.results[0].dimensions == 2);
    EXPECT(mine.results[0].shape[0] == (waits == 2 ? 0 : 3) && mine.results[0].shape[1] == 2);
    if (waits < 2) {
      const int32_t expected[] = {10, 11, 10, 11, 12, 13};
      EXPECT(memcmp(mine.results[0].memory, expected, sizeof expected) == 0);
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
  EXPECT(mine.code == AIACC_OK && mine.results[0].shape[0] == 2 * (rank + 1));
  EXPECT(received[0] == rank + 1 && received[1] == rank + 1);
  const int32_t expected[2][4] = {{0, 100, 0, 0}, {1, 2, 101, 102}};
  EXPECT(memcmp(mine.results[0].memory, expected[rank], 8 * (size_t)(rank + 1)) == 0);
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
