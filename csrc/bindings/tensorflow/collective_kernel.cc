#include "csrc/bindings/tensorflow/collective_kernel.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/bindings/tensorflow/broadcasts.h"
#include "csrc/bindings/tensorflow/constants.h"
#include "csrc/bindings/tensorflow/data_types.h"

namespace aiacc::tensorflow {
namespace {

std::vector<std::int32_t> members_of(std::uint32_t process_set) {
  std::int32_t size = 0;
  check(aiacc_process_set_size(process_set, &size));
  std::vector<std::int32_t> ranks(size);
  check(aiacc_process_set_ranks(process_set, ranks.data(), ranks.size()));
  return ranks;
}

/// One run, from its start to the callback.
class Run {
 public:
  /// Takes `execution` when nothing can fail any more. Throws OpError.
  Run(Constants constants, std::unique_ptr<Execution>&& execution)
      : constants_(std::move(constants)), name_(name_of(constants_, execution->iteration())) {
    describe(*execution);
    execution_ = std::move(execution);
  }

  /// Submits it. It is deleted when it is over.
  static void start(const Constants& constants, std::unique_ptr<Execution> execution) noexcept {
    std::unique_ptr<Run> run = make_run<Run>(constants, std::move(execution));
    if (run == nullptr) {
      return;
    }
    Run* running = run.release();
    // On success it may be over and deleted before this returns.
    const std::int32_t code = aiacc_submit(&running->submission_, nullptr);
    if (code != AIACC_OK) {
      run.reset(running);
      run->execution_->finish(error_code(code), aiacc_last_error());
    } else {
      // Nobody waits in the core, and it is not known which node of a graph is the last to be
      // ready.
      (void)aiacc_flush();  // without a runtime the operation has failed meanwhile
    }
  }

 private:
  void describe(Execution& execution) {
    submission_.kind = constants_.kind;
    submission_.name = name_.c_str();
    submission_.process_set = constants_.process_set;
    submission_.op = constants_.op;
    submission_.wire = constants_.wire;
    submission_.prescale = constants_.prescale;
    submission_.postscale = constants_.postscale;
    submission_.allocate = allocate;
    submission_.done = done;
    submission_.context = this;
    if (constants_.kind == AIACC_JOIN) {
      submission_.received = static_cast<std::int64_t*>(execution.allocate(0, kInt64, {}));
    }
    inputs_.reserve(constants_.tensors);
    for (int i = 0; i < constants_.tensors; ++i) {
      describe_tensor(i, execution);
    }
    submission_.tensor_count = static_cast<std::uint32_t>(tensors_.size());
    submission_.tensors = tensors_.data();
    if (constants_.kind == AIACC_ALLGATHER || constants_.kind == AIACC_ALLTOALL) {
      describe_rows(execution);
    }
  }

  void describe_tensor(int index, Execution& execution) {
    Input& input = inputs_.emplace_back(execution.input(index));
    aiacc_tensor tensor{};
    tensor.dtype = core_dtype(input.dtype);
    tensor.dimensions = static_cast<std::uint32_t>(input.shape.size());
    tensor.shape = input.shape.data();
    tensor.input = input.data;
    if (constants_.kind == AIACC_ALLREDUCE) {
      tensor.output = execution.reuse(index, input.shape);
    } else if (input.shape.empty()) {
      throw OpError{kInvalidArgument,
                    std::string(verb_of(constants_.kind)) + " of '" + name_ +
                        "': a tensor without dimensions (expected at least one, whose first is "
                        "divided among the ranks); reshape it to [1]"};
    } else if (constants_.kind == AIACC_REDUCESCATTER) {
      std::vector<std::int64_t> part = input.shape;
      part.front() = rows_of_this_rank(part.front());
      tensor.output = execution.allocate(index, input.dtype, part);
    }
    tensors_.push_back(tensor);
  }

  std::int64_t rows_of_this_rank(std::int64_t rows) const {
    const std::vector<std::int32_t> ranks = members_of(constants_.process_set);
    std::int32_t rank = 0;
    check(aiacc_rank(&rank));
    const auto number = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    const auto size = static_cast<std::int64_t>(ranks.size());
    return rows / size + (number < rows % size ? 1 : 0);
  }

  /// Rows that come from each member, and of an all-to-all those that go to each.
  void describe_rows(Execution& execution) {
    const auto size = static_cast<std::int64_t>(members_of(constants_.process_set).size());
    if (constants_.kind == AIACC_ALLGATHER) {
      const std::vector<std::int64_t> shape{constants_.tensors, size};
      submission_.received =
          static_cast<std::int64_t*>(execution.allocate(constants_.tensors, kInt64, shape));
      return;
    }
    submission_.received = static_cast<std::int64_t*>(execution.allocate(1, kInt64, {size}));
    const Input given = execution.input(1);
    const auto count = std::accumulate(
        given.shape.begin(), given.shape.end(), std::int64_t{1}, std::multiplies<>());
    const auto* splits = static_cast<const std::int64_t*>(given.data);
    splits_.assign(splits, splits + count);
    if (splits_.empty()) {
      const std::int64_t rows = inputs_.front().shape.front();
      if (rows % size != 0) {
        throw OpError{kInvalidArgument,
                      "alltoall of '" + name_ + "': " + std::to_string(rows) + " rows for " +
                          std::to_string(size) + " ranks (expected a multiple of " +
                          std::to_string(size) + "); give splits, the rows for each rank"};
      }
      splits_.assign(size, rows / size);
    }
    submission_.splits = splits_.data();
    submission_.split_count = static_cast<std::uint32_t>(splits_.size());
  }

  static void* allocate(void* context,
                        std::uint32_t tensor,
                        const std::int64_t* shape,
                        std::uint32_t dimensions) {
    auto& run = *static_cast<Run*>(context);
    try {
      return run.execution_->allocate(static_cast<int>(tensor),
                                      run.inputs_[tensor].dtype,
                                      std::vector<std::int64_t>(shape, shape + dimensions));
    } catch (...) {
      return nullptr;  // the core says how much there was no memory for
    }
  }

  static void done(void* context, const aiacc_status* status) {
    const std::unique_ptr<Run> run(static_cast<Run*>(context));
    run->execution_->finish(error_code(status->code), status->message);
  }

  const Constants constants_;
  const std::string name_;
  std::unique_ptr<Execution> execution_;
  aiacc_submission submission_ = AIACC_SUBMISSION_INIT;
  std::vector<Input> inputs_;
  std::vector<aiacc_tensor> tensors_;
  std::vector<std::int64_t> splits_;
};

class CollectiveKernel final : public Kernel {
 public:
  explicit CollectiveKernel(Constants constants) : constants_(std::move(constants)) {}

  void start(std::unique_ptr<Execution> execution) const noexcept override {
    if (constants_.kind == AIACC_BROADCAST) {
      start_broadcasts(constants_, std::move(execution));
      return;
    }
    Run::start(constants_, std::move(execution));
  }

 private:
  const Constants constants_;
};

/// Gives a number, at once or from another thread.
class NumberKernel final : public Kernel {
 public:
  NumberKernel(std::int64_t number, bool elsewhere) : number_(number), elsewhere_(elsewhere) {}

  void start(std::unique_ptr<Execution> execution) const noexcept override {
    try {
      *static_cast<std::int64_t*>(execution->allocate(0, kInt64, {})) = number_;
      if (elsewhere_) {
        // An owner that a thread which does not start leaves alone.
        const std::shared_ptr<Execution> shared = std::move(execution);
        try {
          std::thread([shared] { shared->finish(kOk, ""); }).detach();
        } catch (const std::exception& error) {
          shared->finish(kResourceExhausted, error.what());
        }
        return;
      }
    } catch (const OpError& error) {
      execution->finish(error.code, error.message.c_str());
      return;
    }
    execution->finish(kOk, "");
  }

 private:
  const std::int64_t number_;
  const bool elsewhere_;
};

/// Gives the time at which its inputs are there, of a clock that never goes back.
class MomentKernel final : public Kernel {
 public:
  void start(std::unique_ptr<Execution> execution) const noexcept override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    try {
      *static_cast<std::int64_t*>(execution->allocate(0, kInt64, {})) =
          std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    } catch (const OpError& error) {
      execution->finish(error.code, error.message.c_str());
      return;
    }
    execution->finish(kOk, "");
  }
};

/// Gives what the job that runs at the moment says about this rank.
class TopologyKernel final : public Kernel {
 public:
  TopologyKernel(std::string quantity, std::int64_t process_set)
      : quantity_(std::move(quantity)), process_set_(static_cast<std::uint32_t>(process_set)) {}

  void start(std::unique_ptr<Execution> execution) const noexcept override {
    try {
      *static_cast<std::int32_t*>(execution->allocate(0, kInt32, {})) = value();
    } catch (const OpError& error) {
      execution->finish(error.code, error.message.c_str());
      return;
    } catch (const std::exception& error) {
      execution->finish(kResourceExhausted, error.what());
      return;
    }
    execution->finish(kOk, "");
  }

 private:
  std::int32_t value() const {
    std::int32_t value = 0;
    if (quantity_ == "size") {
      check(aiacc_process_set_size(process_set_, &value));
    } else if (quantity_ == "local_rank") {
      check(aiacc_local_rank(&value));
    } else if (quantity_ == "local_size") {
      check(aiacc_local_size(&value));
    } else {
      check(aiacc_rank(&value));
    }
    if (quantity_ == "process_set_included") {
      const std::vector<std::int32_t> members = members_of(process_set_);
      return std::find(members.begin(), members.end(), value) != members.end() ? 1 : 0;
    }
    if (quantity_ == "process_set_rank") {
      const std::vector<std::int32_t> members = members_of(process_set_);
      value = std::find(members.begin(), members.end(), value) - members.begin();
    }
    return value;
  }

  const std::string quantity_;
  const std::uint32_t process_set_;
};

}  // namespace

std::unique_ptr<Kernel> make_kernel(const OpSpec& spec, const Attributes& attributes) {
  if (spec.kind == kToken) {
    return std::make_unique<NumberKernel>(0, false);
  }
  if (spec.kind == kProbe) {
    return std::make_unique<NumberKernel>(kProbeAnswer, true);
  }
  if (spec.kind == kMoment) {
    return std::make_unique<MomentKernel>();
  }
  if (spec.kind == kTopology) {
    return std::make_unique<TopologyKernel>(attributes.text("quantity"),
                                            attributes.number("process_set_id"));
  }
  return std::make_unique<CollectiveKernel>(constants_from(spec.kind, attributes));
}

}  // namespace aiacc::tensorflow
