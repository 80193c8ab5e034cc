/* As c_api_job_collectives.c, for groups of all-gathers, Adasum, and process sets other than that
 * of all ranks. */
#include "tests/cpp/bindings/c_job.h"

/* Memory for what the cases of any number of ranks up to this one receive. */
#define MOST_RANKS 4

/* The members of a process set, and which of them this rank is: -1 for none. */
static int32_t members_of(uint32_t set, int32_t* ranks, int32_t* index) {
  const int32_t rank = my_rank();
  int32_t size = 0;
  *index = -1;
  if (aiacc_process_set_size(set, &size) != AIACC_OK || size > MOST_RANKS ||
      aiacc_process_set_ranks(set, ranks, MOST_RANKS) != AIACC_OK) {
    return 0;
  }
  for (int32_t i = 0; i < size; ++i) {
    *index = ranks[i] == rank ? i : *index;
  }
  return size;
}

/* Member m gives to tensor 0 m + 1 rows of two int32, to tensor 1 no row unless it is the last,
 * which gives three doubles, to tensor 2 two rows of one byte, and to tensor 3 no row at all. All
 * in one submission. */
static int gather_group(uint32_t set, int waits) {
  int32_t ranks[MOST_RANKS];
  int32_t index = -1;
  const int32_t size = members_of(set, ranks, &index);
  const int64_t given[4] = {index + 1, index == size - 1 ? 3 : 0, 2, 0};
  int32_t pairs[MOST_RANKS][2];
  double numbers[3];
  uint8_t bytes[2];
  int64_t received[4 * MOST_RANKS + 1]; /* as many for each tensor as there are members */
  ticket mine = {0};
  int64_t handle = 0;
  EXPECT(size > 0 && index >= 0);
  memset(received, -1, sizeof received);
  for (int k = 0; k < MOST_RANKS; ++k) {
    pairs[k][0] = 10 * index + k;
    pairs[k][1] = -pairs[k][0];
  }
  for (int k = 0; k < 3; ++k) {
    numbers[k] = 0.5 + k;
  }
  bytes[0] = bytes[1] = (uint8_t)(200 + index);
  const int64_t shapes[4][2] = {{given[0], 2}, {given[1], 1}, {given[2], 1}, {given[3], 5}};
  const aiacc_tensor group[4] = {{AIACC_INT32, 2, shapes[0], pairs, NULL},
                                 {AIACC_FLOAT64, 1, shapes[1], given[1] > 0 ? numbers : NULL, NULL},
                                 {AIACC_UINT8, 2, shapes[2], bytes, NULL},
                                 {AIACC_INT64, 2, shapes[3], NULL, NULL}};
  aiacc_submission submission = submission_of(AIACC_ALLGATHER, "gather.group", group, &mine);
  submission.tensor_count = 4;
  submission.process_set = set;
  submission.received = received;
  if (waits) {
    submission.done = NULL;
  }
  EXPECT(aiacc_submit(&submission, &handle) == AIACC_OK);
  EXPECT(aiacc_flush() == AIACC_OK);
  if (waits) {
    EXPECT(aiacc_wait(handle) == AIACC_OK && mine.done == 0);
    see_results();
  } else {
    wait_for(&mine);
    EXPECT(mine.done == 1 && mine.code == AIACC_OK);
  }
  EXPECT(mine.allocated == 4 && mine.late == 0);
  const int64_t rows[4] = {size * (size + 1) / 2, 3, 2 * (int64_t)size, 0};
  for (int t = 0; t < 4; ++t) {
    const result* got = &mine.results[t];
    EXPECT(got->allocated == 1 && got->dimensions == group[t].dimensions);
    EXPECT(got->shape[0] == rows[t] && (got->dimensions == 1 || got->shape[1] == shapes[t][1]));
  }
  const int32_t* pair = (const int32_t*)mine.results[0].memory;
  for (int32_t m = 0; m < size; ++m) {
    EXPECT(received[m] == m + 1 && received[size + m] == (m == size - 1 ? 3 : 0));
    EXPECT(received[2 * size + m] == 2 && received[3 * size + m] == 0);
    EXPECT(((const uint8_t*)mine.results[2].memory)[2 * m + 1] == 200 + m);
    for (int k = 0; k <= m; ++k, pair += 2) {
      EXPECT(pair[0] == 10 * m + k && pair[1] == -pair[0]);
    }
  }
  EXPECT(received[4 * size] == -1);
  EXPECT(memcmp(mine.results[1].memory, numbers, sizeof numbers) == 0);
  return 0;
}

/* With callbacks, then with a handle. */
EXPORT int job_gather_group(uint32_t set) { return gather_group(set, 0) || gather_group(set, 1); }

/* Rank 1 has no memory for the second tensor of a group; then the ranks' groups differ. */
EXPORT int job_gather_group_failures(void) {
  const int32_t rank = my_rank();
  int32_t rows[4] = {rank, rank, rank, rank};
  const int64_t shapes[2][2] = {{1, 2}, {2, rank == 1 ? 1 : 2}};
  const aiacc_tensor group[2] = {tensor_of(shapes[0], 2, rows, NULL),
                                 tensor_of(shapes[0], 2, rows, NULL)};
  const aiacc_tensor other[2] = {group[0], tensor_of(shapes[1], 2, rows, NULL)};
  ticket full = {0}, different = {0};
  aiacc_submission submission = submission_of(AIACC_ALLGATHER, "full.group", group, &full);
  submission.tensor_count = 2;
  full.refuses = rank == 1 ? 1U << 1 : 0;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&full);
  EXPECT(full.done == 1 && full.results[0].allocated == 1 && full.results[1].allocated == 1);
  EXPECT(full.code == (rank == 1 ? AIACC_INVALID_ARGUMENT : AIACC_OK));
  EXPECT(rank != 1 || strstr(full.message, "for tensor 1") != NULL);

  submission = submission_of(AIACC_ALLGATHER, "different.group", other, &different);
  submission.tensor_count = 2;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&different);
  EXPECT(different.done == 1 && different.code == AIACC_MISMATCH && different.allocated == 0);
  EXPECT(strstr(different.message, "'different.group'") != NULL);
  return 0;
}

/* The same name at once in a process set and among all. */
static int sums_in_a_set(uint32_t set, int32_t members) {
  int32_t size = 0;
  int32_t values[2] = {1, 1};
  const int64_t shape[] = {1};
  const aiacc_tensor tensors[2] = {tensor_of(shape, 1, &values[0], &values[0]),
                                   tensor_of(shape, 1, &values[1], &values[1])};
  ticket told[2] = {{0}};
  aiacc_submission submission = submission_of(AIACC_ALLREDUCE, "sum", &tensors[0], &told[0]);
  EXPECT(aiacc_size(&size) == AIACC_OK);
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  if (members == 0) {
    submission.process_set = set;
    EXPECT_REFUSED(aiacc_submit(&submission, NULL), AIACC_INVALID_ARGUMENT, "not among them");
  } else {
    submission = submission_of(AIACC_ALLREDUCE, "sum", &tensors[1], &told[1]);
    submission.process_set = set;
    EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
    wait_for(&told[1]);
    EXPECT(told[1].done == 1 && told[1].code == AIACC_OK && values[1] == members);
  }
  wait_for(&told[0]);
  EXPECT(told[0].done == 1 && told[0].code == AIACC_OK && values[0] == size);
  return 0;
}

/* Broadcast from the last member, which is a rank of the job, not of the set. */
static int broadcast_in_a_set(uint32_t set, int32_t root, int32_t outsider) {
  int32_t value = my_rank();
  const aiacc_tensor tensor = tensor_of(NULL, 0, &value, &value);
  ticket mine = {0};
  aiacc_submission submission = submission_of(AIACC_BROADCAST, "cast", &tensor, &mine);
  submission.process_set = set;
  submission.root = outsider;
  EXPECT_REFUSED(aiacc_submit(&submission, NULL), AIACC_INVALID_ARGUMENT, "root_rank");
  submission.root = root;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&mine);
  EXPECT(mine.done == 1 && mine.code == AIACC_OK && value == root);
  return 0;
}

/* Member m sends m + i rows to member i; then each gets a share of what all have. */
static int rows_in_a_set(uint32_t set, int32_t members, int32_t index) {
  int32_t rows[2 * MOST_RANKS * MOST_RANKS];
  int32_t shares[2 * MOST_RANKS] = {0};
  int64_t splits[MOST_RANKS];
  int64_t received[MOST_RANKS] = {-1, -1, -1, -1};
  int64_t shape[] = {0};
  ticket told[2] = {{0}};
  for (int32_t i = 0; i < members; ++i) {
    splits[i] = index + i;
    shape[0] += splits[i];
  }
  for (int k = 0; k < 2 * MOST_RANKS * MOST_RANKS; ++k) {
    rows[k] = index;
  }
  const aiacc_tensor sent = tensor_of(shape, 1, rows, NULL);
  aiacc_submission submission = submission_of(AIACC_ALLTOALL, "exchange", &sent, &told[0]);
  submission.process_set = set;
  submission.splits = splits;
  submission.split_count = (uint32_t)members;
  submission.received = received;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&told[0]);
  EXPECT(told[0].code == AIACC_OK && told[0].allocated == 1);
  const int32_t* row = (const int32_t*)told[0].results[0].memory;
  for (int32_t m = 0; m < members; ++m) {
    EXPECT(received[m] == m + index);
    for (int64_t k = 0; k < received[m]; ++k) {
      EXPECT(*row++ == m);
    }
  }

  /* One row too many to come out even: the first member has it. */
  shape[0] = members + 1;
  const aiacc_tensor summed = tensor_of(shape, 1, rows, shares);
  submission = submission_of(AIACC_REDUCESCATTER, "scatter", &summed, &told[1]);
  submission.process_set = set;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&told[1]);
  const int32_t sum = members * (members - 1) / 2;
  EXPECT(told[1].code == AIACC_OK && shares[0] == sum);
  EXPECT(shares[1] == (index == 0 ? sum : 0));
  return 0;
}

/* What a process set does, while `outsider` is not in it. A join is of all ranks. */
EXPORT int job_process_set(uint32_t set, int32_t outsider) {
  int32_t ranks[MOST_RANKS];
  int32_t index = -1;
  const int32_t size = members_of(set, ranks, &index);
  const int32_t members = index < 0 ? 0 : size;
  ticket mine = {0};
  EXPECT(size > 0);
  if (sums_in_a_set(set, members) != 0) {
    return 1;
  }
  aiacc_submission submission = submission_of(AIACC_JOIN, NULL, NULL, &mine);
  submission.process_set = set;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_INVALID_ARGUMENT);
  if (members == 0) {
    return 0;
  }
  submission.kind = AIACC_BARRIER;
  EXPECT(aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&mine);
  EXPECT(mine.done == 1 && mine.code == AIACC_OK);
  return broadcast_in_a_set(set, ranks[size - 1], outsider) || rows_in_a_set(set, members, index) ||
         job_gather_group(set);
}

/* A set that was removed. */
EXPORT int job_removed_set(uint32_t set) {
  int32_t number = -1;
  ticket mine = {0};
  aiacc_submission submission = submission_of(AIACC_BARRIER, NULL, NULL, &mine);
  submission.process_set = set;
  EXPECT_REFUSED(aiacc_submit(&submission, NULL), AIACC_INVALID_ARGUMENT, "not registered");
  EXPECT_REFUSED(aiacc_process_set_size(set, &number), AIACC_INVALID_ARGUMENT, "not registered");
  EXPECT_REFUSED(
      aiacc_process_set_ranks(set, &number, 1), AIACC_INVALID_ARGUMENT, "not registered");
  EXPECT(number == -1 && mine.done == 0);
  return 0;
}

/* Adasum among two members: the first tensor is orthogonal on them, so both are kept; the second is
 * the same on both, and stays so. In one group, each with weights of its own. */
EXPORT int job_adasum(uint32_t set) {
  int32_t ranks[MOST_RANKS];
  int32_t index = -1;
  const int32_t size = members_of(set, ranks, &index);
  float mine[2] = {index == 0 ? 3.0F : 0.0F, index == 0 ? 0.0F : 5.0F};
  float same[3] = {1.0F, -2.0F, 4.0F};
  float combined[3] = {0.0F, 0.0F, 0.0F};
  const int64_t shapes[2] = {2, 3};
  const aiacc_tensor group[2] = {{AIACC_FLOAT32, 1, &shapes[0], mine, mine},
                                 {AIACC_FLOAT32, 1, &shapes[1], same, combined}};
  const aiacc_tensor integers = {AIACC_INT32, 1, &shapes[0], mine, mine};
  ticket told = {0};
  aiacc_submission submission = submission_of(AIACC_ALLREDUCE, "adasum", group, &told);
  submission.process_set = set;
  submission.op = AIACC_ADASUM;
  submission.tensor_count = 2;
  if (size == 3) {
    EXPECT_REFUSED(aiacc_submit(&submission, NULL), AIACC_UNSUPPORTED, "a power of two");
    return 0;
  }
  submission.tensors = &integers;
  submission.tensor_count = 1;
  EXPECT_REFUSED(aiacc_submit(&submission, NULL), AIACC_INVALID_ARGUMENT, "floating-point");
  submission.tensors = group;
  submission.tensor_count = 2;
  submission.prescale = 2;
  submission.postscale = 0.5;
  EXPECT(size == 2 && aiacc_submit(&submission, NULL) == AIACC_OK);
  wait_for(&told);
  EXPECT(told.done == 1 && told.code == AIACC_OK && told.allocated == 0);
  EXPECT(mine[0] == 3.0F && mine[1] == 5.0F);
  EXPECT(memcmp(combined, same, sizeof same) == 0);
  return 0;
}
