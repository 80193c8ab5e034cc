/* What the functions of c_api_job.c are to those who wait, these are to what is computed: every
 * kind of operation, among all ranks and in process sets. */
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

/* Rows that member `index` of `size` gives to a tensor of `gather`. */
static int64_t rows_of(uint32_t tensor, int32_t index, int32_t size) {
  const int64_t rows[4] = {index + 1, index == size - 1 ? 3 : 0, 2, 0};
  return rows[tensor];
}

/* Tensor 0 is of rows of two int32, tensor 1 of doubles, tensor 2 of bytes, and to tensor 3 nobody
 * gives any. From the first up to the last, in one submission. */
static int gather(uint32_t set, uint32_t first, uint32_t last, int waits) {
  int32_t ranks[MOST_RANKS];
  int32_t index = -1;
  const int32_t size = members_of(set, ranks, &index);
  const uint32_t count = last + 1 - first;
  int32_t pairs[MOST_RANKS][2];
  const double numbers[3] = {0.5, 1.5, 2.5};
  const uint8_t bytes[2] = {(uint8_t)(200 + index), (uint8_t)(200 + index)};
  int64_t received[4 * MOST_RANKS + 1]; /* as many for each tensor as there are members */
  int64_t shapes[4][2] = {{0, 2}, {0, 1}, {0, 1}, {0, 5}};
  ticket mine = {0};
  int64_t handle = 0;
  EXPECT(size > 0 && index >= 0);
  memset(received, -1, sizeof received);
  for (int k = 0; k < MOST_RANKS; ++k) {
    pairs[k][0] = 10 * index + k;
    pairs[k][1] = -pairs[k][0];
  }
  for (uint32_t t = 0; t < 4; ++t) {
    shapes[t][0] = rows_of(t, index, size);
  }
  const aiacc_tensor group[4] = {
      {AIACC_INT32, 2, shapes[0], pairs, NULL},
      {AIACC_FLOAT64, 1, shapes[1], index == size - 1 ? (void*)numbers : NULL, NULL},
      {AIACC_UINT8, 2, shapes[2], (void*)bytes, NULL},
      {AIACC_INT64, 2, shapes[3], NULL, NULL}};
  aiacc_submission submission = submission_of(AIACC_ALLGATHER, "gather", &group[first], &mine);
  submission.tensor_count = count;
  submission.process_set = set;
  submission.received = received;
  if (waits) {
    submission.done = NULL;
    EXPECT(aiacc_submit(&submission, &handle) == AIACC_OK);
    EXPECT(aiacc_flush() == AIACC_OK);
    EXPECT(aiacc_wait(handle) == AIACC_OK && mine.done == 0);
    see_results();
  } else {
    EXPECT(outcome_of(&submission) == AIACC_OK);
  }
  EXPECT(mine.allocated == (int)count && mine.late == 0);
  for (uint32_t t = first; t <= last; ++t) {
    const result* got = &mine.results[t - first];
    const char* memory = got->memory;
    int64_t rows = 0;
    for (int32_t m = 0; m < size; ++m) {
      EXPECT(received[(int32_t)(t - first) * size + m] == rows_of(t, m, size));
      for (int64_t k = 0; k < rows_of(t, m, size); ++k, ++rows) {
        const int32_t* pair = (const int32_t*)memory + 2 * rows;
        EXPECT(t != 0 || (pair[0] == 10 * m + k && pair[1] == -pair[0]));
        EXPECT(t != 1 || memcmp(memory + 8 * rows, &numbers[k], 8) == 0);
        EXPECT(t != 2 || ((const uint8_t*)memory)[rows] == 200 + m);
      }
    }
    EXPECT(got->allocated == 1 && got->dimensions == group[t].dimensions && got->shape[0] == rows);
    EXPECT(got->dimensions == 1 || got->shape[1] == shapes[t][1]);
  }
  EXPECT(received[(int32_t)count * size] == -1);
  return 0;
}

/* With callbacks, then with a handle; then nobody gives any rows. */
EXPORT int job_gather(void) {
  return gather(0, 0, 0, 0) || gather(0, 0, 0, 1) || gather(0, 3, 3, 0);
}
EXPORT int job_gather_group(uint32_t set) { return gather(set, 0, 3, 0) || gather(set, 0, 3, 1); }

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
    EXPECT(outcome_of(&submission) == AIACC_OK && values[1] == members);
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
  EXPECT(outcome_of(&submission) == AIACC_OK && value == root);
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
  EXPECT(outcome_of(&submission) == AIACC_OK && told[0].allocated == 1);
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
  const int32_t sum = members * (members - 1) / 2;
  EXPECT(outcome_of(&submission) == AIACC_OK && shares[0] == sum);
  EXPECT(shares[1] == (index == 0 ? sum : 0));
  return 0;
}

EXPORT int job_all_to_all(void) { return rows_in_a_set(0, 2, my_rank()); }

/* Broadcast, reduce-scatter of a group, barrier, join. */
EXPORT int job_others(void) {
  const int32_t rank = my_rank();
  const int64_t shape[] = {3};
  int32_t value[3] = {rank, rank + 1, rank + 2};
  int32_t shares[2][2] = {{0}};
  int64_t last = -1;
  ticket told[4] = {{0}};
  aiacc_submission submission = submission_of(AIACC_BARRIER, NULL, NULL, &told[0]);
  EXPECT(outcome_of(&submission) == AIACC_OK);

  int32_t received[3] = {0};
  const aiacc_tensor from_one = tensor_of(shape, 1, rank == 1 ? value : NULL, received);
  submission = submission_of(AIACC_BROADCAST, "cast", &from_one, &told[1]);
  submission.root = 1;
  EXPECT(outcome_of(&submission) == AIACC_OK);
  EXPECT(received[0] == 1 && received[1] == 2 && received[2] == 3);

  const aiacc_tensor group[2] = {tensor_of(shape, 1, value, shares[0]),
                                 tensor_of(shape, 1, received, shares[1])};
  submission = submission_of(AIACC_REDUCESCATTER, "scatter", group, &told[2]);
  submission.tensor_count = 2;
  EXPECT(outcome_of(&submission) == AIACC_OK);
  EXPECT(shares[0][0] == (rank == 0 ? 1 : 5) && shares[1][0] == (rank == 0 ? 2 : 6));
  EXPECT(rank == 1 || (shares[0][1] == 3 && shares[1][1] == 4));

  submission = submission_of(AIACC_JOIN, NULL, NULL, &told[3]);
  submission.received = &last;
  EXPECT(outcome_of(&submission) == AIACC_OK);
  EXPECT(last == 0 || last == 1);
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
  EXPECT(outcome_of(&submission) == AIACC_OK);
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
  EXPECT(size == 2 && outcome_of(&submission) == AIACC_OK && told.allocated == 0);
  EXPECT(mine[0] == 3.0F && mine[1] == 5.0F);
  EXPECT(memcmp(combined, same, sizeof same) == 0);
  return 0;
}
