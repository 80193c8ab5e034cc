#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/support/coordinators.h"

namespace aiacc {
namespace {

/// One operation of a random program, as every rank knows it.
struct Step {
  Request request;
  std::vector<std::int64_t> rows;  ///< all-gather: of each rank
  bool in_place = false;
  bool mismatch = false;  ///< the last rank submits another dtype
};

/// What all ranks do, drawn from a seed: the same operations, again and again, in any order.
struct Program {
  int size = 2;
  int threads = 1;
  int iterations = 3;
  std::vector<Step> steps;

  Program(int ranks, std::uint32_t seed) : size(ranks) {
    std::mt19937 random(seed);
    threads = 1 + static_cast<int>(random() % 3);
    const std::size_t count = 5 + random() % 25;
    for (std::size_t i = 0; i < count; ++i) {
      steps.push_back(step(i, random));
    }
  }

 private:
  Step step(std::size_t index, std::mt19937& random) const {
    static constexpr DataType kTypes[] = {DataType::kFloat32,
                                          DataType::kFloat16,
                                          DataType::kBFloat16,
                                          DataType::kInt64,
                                          DataType::kUInt8,
                                          DataType::kFloat64};
    static constexpr OpKind kKinds[] = {
        OpKind::kAllreduce, OpKind::kAllgather, OpKind::kBroadcast, OpKind::kBarrier};
    static constexpr ReduceOp kOps[] = {
        ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
    static constexpr std::int64_t kCounts[] = {0, 1, 7, 64, 100, 1000, 5000};
    Step step;
    Request& request = step.request;
    request.name = "tensor" + std::to_string(index);
    request.kind = kKinds[random() % std::size(kKinds)];
    request.dtype = kTypes[random() % std::size(kTypes)];
    request.shape = {kCounts[random() % std::size(kCounts)], 1 + static_cast<int>(random() % 2)};
    step.in_place = random() % 2 == 0;
    if (request.kind == OpKind::kAllreduce) {
      request.op = kOps[random() % std::size(kOps)];
      request.prescale = random() % 4 == 0 ? 2.0 : 1.0;
      request.postscale = random() % 4 == 0 ? 3.0 : 1.0;
    } else if (request.kind == OpKind::kBroadcast) {
      request.root = static_cast<int>(random()) % size;
      request.root = std::abs(request.root);
    } else if (request.kind == OpKind::kBarrier) {
      request.shape.clear();
    } else {
      for (int rank = 0; rank < size; ++rank) {
        step.rows.push_back(kCounts[random() % 5]);
      }
    }
    step.mismatch = size > 1 && random() % 10 == 0;
    return step;
  }
};

/// Element `index` of what `rank` gives: 1 or 2, exact in every type, product of 7 included.
double given(const Step& step, int rank, std::uint64_t index) {
  const std::size_t salt = step.request.name.back();
  return 1.0 + static_cast<double>((index * 3 + salt + static_cast<std::size_t>(rank) * 5) % 7 % 2);
}

double expected_sum(const Step& step, int size, std::uint64_t index) {
  const Request& request = step.request;
  double result = given(step, 0, index) * request.prescale;
  for (int rank = 1; rank < size; ++rank) {
    const double more = given(step, rank, index) * request.prescale;
    switch (request.op) {
      case ReduceOp::kMin:
        result = std::min(result, more);
        break;
      case ReduceOp::kMax:
        result = std::max(result, more);
        break;
      case ReduceOp::kProduct:
        result *= more;
        break;
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
      case ReduceOp::kAdasum:
        result += more;
        break;
    }
  }
  return result * request.postscale / (request.op == ReduceOp::kAverage ? size : 1);
}

template <class T>
double number(T value) {
  if constexpr (kIs16Bit<T>) {
    return static_cast<double>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return value.bits;
  } else {
    return static_cast<double>(value);
  }
}

template <class T>
T element(double value) {
  if constexpr (kIs16Bit<T>) {
    return T::from(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<std::uint8_t>(value)};
  } else {
    return static_cast<T>(value);
  }
}

/// Whether T can hold what the operation makes of the given numbers.
template <class T>
double rounded(double value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<double>(static_cast<T>(static_cast<std::int64_t>(value)));
  } else {
    return number(element<T>(value));
  }
}

/// One submitted step of one rank with its buffers, which end with it.
class Submitted {
 public:
  Submitted(Coordinator& coordinator, const Step& step, int rank, int size)
      : coordinator_(coordinator), step_(step), rank_(rank), size_(size), request_(step.request) {
    if (request_.kind == OpKind::kAllgather) {
      request_.shape[0] = step.rows[static_cast<std::size_t>(rank)];
    }
    if (step.mismatch && rank == size - 1) {
      request_.dtype = request_.dtype == DataType::kInt8 ? DataType::kUInt8 : DataType::kInt8;
    }
    input_.resize(request_.bytes());
    fill();
    const bool gathers = request_.kind == OpKind::kAllgather;
    output_.resize(input_.size());
    std::uint8_t* output = step.in_place ? input_.data() : output_.data();
    handle_ = submit(coordinator, request_, input_.data(), gathers ? nullptr : output);
  }

  void finish() {
    const Status status = status_of([&] { operation_ = coordinator_.wait(handle_); });
    if (step_.mismatch) {
      EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
      EXPECT_NE(status.message().find("'" + request_.name + "'"), std::string::npos);
      return;
    }
    ASSERT_TRUE(status.ok()) << status.message();
    check();
    operation_.reset();
    coordinator_.release(handle_);
  }

 private:
  void fill() {
    visit_dtype(request_.dtype, [&](auto zero) {
      using T = decltype(zero);
      for (std::uint64_t i = 0; i < request_.elements() && !input_.empty(); ++i) {
        const T value = element<T>(given(step_, rank_, i));
        std::memcpy(input_.data() + i * sizeof(T), &value, sizeof value);
      }
    });
  }

  void check() {
    visit_dtype(request_.dtype, [&](auto zero) {
      using T = decltype(zero);
      switch (request_.kind) {
        case OpKind::kAllreduce:
          return compare<T>(result(), request_.elements(), [&](std::uint64_t i) {
            return rounded<T>(expected_sum(step_, size_, i));
          });
        case OpKind::kBroadcast:
          return compare<T>(result(), request_.elements(), [&](std::uint64_t i) {
            return given(step_, request_.root, i);
          });
        case OpKind::kAllgather:
          return check_gathered<T>();
        case OpKind::kBarrier:
        case OpKind::kAlltoall:
        case OpKind::kReducescatter:
        case OpKind::kJoin:
        case OpKind::kAddProcessSet:
        case OpKind::kRemoveProcessSet:
        case OpKind::kFormProcessSet:
        case OpKind::kLeaveProcessSet:
        case OpKind::kSend:
        case OpKind::kReceive:
          return;
      }
    });
  }

  template <class T>
  void check_gathered() {
    ASSERT_EQ(operation_->first_extents, step_.rows);
    const std::uint8_t* data = operation_->gathered.data();
    for (int rank = 0; rank < size_; ++rank) {
      const auto rows = static_cast<std::uint64_t>(step_.rows[static_cast<std::size_t>(rank)]);
      const std::uint64_t count = rows * static_cast<std::uint64_t>(request_.shape[1]);
      compare<T>(data, count, [&](std::uint64_t i) { return given(step_, rank, i); });
      data += count * sizeof(T);
    }
    EXPECT_EQ(data, operation_->gathered.data() + operation_->gathered.size());
  }

  const std::uint8_t* result() const { return step_.in_place ? input_.data() : output_.data(); }

  template <class T, class Expected>
  void compare(const std::uint8_t* data, std::uint64_t count, Expected expected) {
    const bool exact = request_.op != ReduceOp::kAverage;
    for (std::uint64_t i = 0; i < count; ++i) {
      T value{};
      std::memcpy(&value, data + i * sizeof(T), sizeof value);
      const double got = number(value);
      const double wanted = expected(i);
      if (exact ? got != wanted : std::abs(got - wanted) > 0.02 * std::abs(wanted)) {
        ADD_FAILURE() << request_.name << " (" << name_of(request_.kind) << " of "
                      << name_of(request_.dtype) << ", " << name_of(request_.op) << ") at rank "
                      << rank_ << ": element " << i << " is " << got << ", expected " << wanted;
        return;
      }
    }
  }

  Coordinator& coordinator_;
  const Step& step_;
  const int rank_;
  const int size_;
  Request request_;
  std::vector<std::uint8_t> input_;
  std::vector<std::uint8_t> output_;
  Handle handle_ = 0;
  std::shared_ptr<Operation> operation_;
};

/// One thread of one rank: its share of the steps, all submitted before the first wait.
void run_thread(const Program& program,
                Coordinator& coordinator,
                int rank,
                const std::vector<std::size_t>& share,
                std::uint32_t seed) {
  std::mt19937 random(seed);
  for (int iteration = 0; iteration < program.iterations; ++iteration) {
    std::vector<std::size_t> order = share;
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::unique_ptr<Submitted>> submitted;
    for (const std::size_t index : order) {
      submitted.push_back(
          std::make_unique<Submitted>(coordinator, program.steps[index], rank, program.size));
      if (random() % 8 == 0) {
        coordinator.flush();
      }
    }
    std::shuffle(submitted.begin(), submitted.end(), random);
    for (auto& one : submitted) {
      one->finish();
    }
  }
}

void run_program(const CoordinatorWorld& world, std::uint32_t seed) {
  const Program program(world.size, seed);
  with_coordinators(world, [&](int rank, RankParts& parts) {
    std::mt19937 random(seed * 100 + static_cast<std::uint32_t>(rank));
    std::vector<std::vector<std::size_t>> shares(static_cast<std::size_t>(program.threads));
    for (std::size_t i = 0; i < program.steps.size(); ++i) {
      shares[random() % shares.size()].push_back(i);
    }
    std::vector<std::thread> threads;
    for (const auto& share : shares) {
      threads.emplace_back([&, thread_seed = static_cast<std::uint32_t>(random())] {
        try {
          run_thread(program, *parts.coordinator, rank, share, thread_seed);
        } catch (const Error& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  });
}

class CoordinatorRandomTest : public testing::TestWithParam<WorldSetting> {};

TEST_P(CoordinatorRandomTest, EveryProgramEndsWithTheRightResults) {
  for (int i = 0; i < 24 / GetParam().size; ++i) {
    const auto seed = static_cast<std::uint32_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    static constexpr std::uint64_t kUnits[] = {256, 1000, 4096, 1 << 20};
    static constexpr std::size_t kCapacities[] = {0, 2, 4096};
    CoordinatorWorld world;
    world.size = GetParam().size;
    world.transport = GetParam().transport;
    world.lanes = 1 + static_cast<int>(random() % 4);
    world.options.parameters.lanes = 1 + random() % static_cast<std::uint32_t>(world.lanes);
    world.options.parameters.unit_bytes = kUnits[random() % std::size(kUnits)];
    world.options.cache_capacity = kCapacities[random() % std::size(kCapacities)];
    run_program(world, seed);
    if (HasFailure()) {
      return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds,
                         CoordinatorRandomTest,
                         testing::Values(WorldSetting{1, Transport::kInProcess},
                                         WorldSetting{2, Transport::kInProcess},
                                         WorldSetting{4, Transport::kInProcess},
                                         WorldSetting{7, Transport::kInProcess},
                                         WorldSetting{2, Transport::kTcp},
                                         WorldSetting{4, Transport::kTcp},
                                         WorldSetting{7, Transport::kTcp}),
                         setting_name);

}  // namespace
}  // namespace aiacc
