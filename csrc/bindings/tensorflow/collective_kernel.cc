#include "csrc/bindings/tensorflow/collective_kernel.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/bindings/tensorflow/data_types.h"

namespace aiacc::tensorflow {
namespace {

/// As Horovod's ops end: what all ranks see and may survive is a failed precondition.
int error_code(std::int32_t code) {
  switch (code) {
    case AIACC_OK:
      return kOk;
    case AIACC_INVALID_ARGUMENT:
      return kInvalidArgument;
    case AIACC_UNSUPPORTED:
      return kUnimplemented;
    case AIACC_MISMATCH:
      return kFailedPrecondition;
    case AIACC_SHUTDOWN:
      return kAborted;
    default:
      return kUnknown;
  }
}

void check(std::int32_t code) {
  if (code != AIACC_OK) {
    throw OpError{error_code(code), aiacc_last_error()};
  }
}

std::vector<std::int32_t> members_of(std::uint32_t process_set) {
  std::int32_t size = 0;
  check(aiacc_process_set_size(process_set, &size));
  std::vector<std::int32_t> ranks(size);
  check(aiacc_process_set_ranks(process_set, ranks.data(), ranks.size()));
  return ranks;
}

/// What is the same in every run of a node.
struct Constants {
  int kind = 0;
  std::string name;
  std::uint32_t process_set = 0;
  int tensors = 0;
  std::int32_t op = AIACC_SUM;
  std::int32_t wire = AIACC_WIRE_TENSOR;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t root = 0;
};

double from_bits(std::int64_t bits) {
  double value = 0;
  static_assert(sizeof value == sizeof bits);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

const char* verb_of(int kind) {
  switch (kind) {
    case AIACC_ALLREDUCE:
      return "allreduce";
    case AIACC_ALLGATHER:
      return "allgather";
    case AIACC_BROADCAST:
      return "broadcast";
    case AIACC_ALLTOALL:
      return "alltoall";
    case AIACC_REDUCESCATTER:
      return "reducescatter";
    default:
      return "";  // they need no name
  }
}

/// What calls the function that a node is in, "" for Python: functions that others call are part of
/// their graphs when these run, and the names of their nodes begin with that of the call.
std::string call_of(const std::string& node) {
  const std::size_t last = node.rfind("PartitionedCall");
  return last == std::string::npos ? "" : '@' + node.substr(0, node.find('/', last));
}

Constants constants_from(int kind, const Attributes& attributes) {
  Constants constants;
  constants.kind = kind;
  constants.process_set = static_cast<std::uint32_t>(attributes.number("process_set_id"));
  constants.name = attributes.text("wire_name");
  if (*verb_of(kind) == '\0') {
    return constants;
  }
  if (attributes.number("per_call") != 0) {
    constants.name += call_of(attributes.node_name());
  }
  if (kind == AIACC_ALLREDUCE || kind == AIACC_REDUCESCATTER) {
    constants.op = static_cast<std::int32_t>(attributes.number("reduce_op"));
    constants.prescale = from_bits(attributes.number("prescale_bits"));
    constants.postscale = from_bits(attributes.number("postscale_bits"));
  }
  if (kind == AIACC_ALLREDUCE) {
    constants.wire = static_cast<std::int32_t>(attributes.number("wire_format"));
  }
  if (kind == AIACC_BROADCAST) {
    constants.root = static_cast<std::int32_t>(attributes.number("root_rank"));
  }
  constants.tensors =
      kind == AIACC_BROADCAST || kind == AIACC_ALLTOALL ? 1 : attributes.length("T");
  return constants;
}

/// By which ranks meet: iterations of a loop run at the same time, so each has its own names.
std::string name_of(const Constants& constants, const Iteration& iteration) {
  if (constants.name.empty() || iteration.loop == 0) {
    return constants.name;
  }
  // Numbered anew from time to time, so that long loops use their names again and the core
  // remembers them; 10 iterations run at a time unless the user wants more.
  constexpr int kNumbers = 16;
  return constants.name + '.' + std::to_string(iteration.loop) + '.' +
         std::to_string(iteration.number % kNumbers);
}

/// One run, from its start to the callback.
class Run {
 public:
  /// Takes `execution` when nothing can fail any more.
  Run(Constants constants, std::unique_ptr<Execution>&& execution)
      : constants_(std::move(constants)),
        name_(name_of(constants_, execution->iteration())),
        execution_(std::move(execution)) {}

  /// Submits it. It is deleted when it is over.
  static void start(const Constants& constants, std::unique_ptr<Execution> execution) noexcept {
    std::unique_ptr<Run> run;
    const auto fail = [&run, &execution](int code, const char* message) {
      (run ? run->execution_ : execution)->finish(code, message);
    };
    try {
      run = std::make_unique<Run>(constants, std::move(execution));
      run->describe();
    } catch (const OpError& error) {
      fail(error.code, error.message.c_str());
      return;
    } catch (const std::exception& error) {
      fail(kResourceExhausted, error.what());
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
  void describe() {
    submission_.kind = constants_.kind;
    submission_.name = name_.c_str();
    submission_.process_set = constants_.process_set;
    submission_.op = constants_.op;
    submission_.wire = constants_.wire;
    submission_.prescale = constants_.prescale;
    submission_.postscale = constants_.postscale;
    submission_.root = constants_.root;
    submission_.allocate = allocate;
    submission_.done = done;
    submission_.context = this;
    if (constants_.kind == AIACC_JOIN) {
      submission_.received = static_cast<std::int64_t*>(execution_->allocate(0, kInt64, {}));
    }
    inputs_.reserve(constants_.tensors);
    for (int i = 0; i < constants_.tensors; ++i) {
      describe_tensor(i);
    }
    submission_.tensor_count = static_cast<std::uint32_t>(tensors_.size());
    submission_.tensors = tensors_.data();
    if (constants_.kind == AIACC_ALLGATHER || constants_.kind == AIACC_ALLTOALL) {
      describe_rows();
    }
  }

  void describe_tensor(int index) {
    Input& input = inputs_.emplace_back(execution_->input(index));
    aiacc_tensor tensor{};
    tensor.dtype = core_dtype(input.dtype);
    tensor.dimensions = static_cast<std::uint32_t>(input.shape.size());
    tensor.shape = input.shape.data();
    tensor.input = input.data;
    if (constants_.kind == AIACC_ALLREDUCE || constants_.kind == AIACC_BROADCAST) {
      tensor.output = execution_->reuse(index, input.shape);
    } else if (input.shape.empty()) {
      throw OpError{kInvalidArgument,
                    std::string(verb_of(constants_.kind)) + " of '" + name_ +
                        "': a tensor without dimensions (expected at least one, whose first is "
                        "divided among the ranks); reshape it to [1]"};
    } else if (constants_.kind == AIACC_REDUCESCATTER) {
      std::vector<std::int64_t> part = input.shape;
      part.front() = rows_of_this_rank(part.front());
      tensor.output = execution_->allocate(index, input.dtype, part);
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
  void describe_rows() {
    const auto size = static_cast<std::int64_t>(members_of(constants_.process_set).size());
    if (constants_.kind == AIACC_ALLGATHER) {
      const std::vector<std::int64_t> shape{constants_.tensors, size};
      submission_.received =
          static_cast<std::int64_t*>(execution_->allocate(constants_.tensors, kInt64, shape));
      return;
    }
    submission_.received = static_cast<std::int64_t*>(execution_->allocate(1, kInt64, {size}));
    const Input given = execution_->input(1);
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
  const std::unique_ptr<Execution> execution_;
  aiacc_submission submission_ = AIACC_SUBMISSION_INIT;
  std::vector<Input> inputs_;
  std::vector<aiacc_tensor> tensors_;
  std::vector<std::int64_t> splits_;
};

class CollectiveKernel final : public Kernel {
 public:
  explicit CollectiveKernel(Constants constants) : constants_(std::move(constants)) {}

  void start(std::unique_ptr<Execution> execution) const noexcept override {
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
  if (spec.kind == kTopology) {
    return std::make_unique<TopologyKernel>(attributes.text("quantity"),
                                            attributes.number("process_set_id"));
  }
  return std::make_unique<CollectiveKernel>(constants_from(spec.kind, attributes));
}

}  // namespace aiacc::tensorflow
