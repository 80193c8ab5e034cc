#include "csrc/bindings/tensorflow/broadcasts.h"

#include <atomic>
#include <cstddef>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings/tensorflow/data_types.h"

namespace aiacc::tensorflow {
namespace {

/// One run, from its start to the last callback.
class Broadcasts {
 public:
  /// Reads what `execution` has, and takes it when nothing can fail any more. Throws OpError.
  Broadcasts(const Constants& constants, std::unique_ptr<Execution>&& execution)
      : parts_(constants.tensors), left_(parts_.size() + 1) {
    const std::string name = name_of(constants, execution->iteration());
    std::int32_t rank = -1;
    check(aiacc_rank(&rank));
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      Part& part = parts_[i];
      const int index = static_cast<int>(i);
      part.run = this;
      part.name = parts_.size() == 1 ? name : name + '[' + std::to_string(i) + ']';
      part.input = execution->input(index);
      // The root keeps what it has: its memory is only read.
      part.output = rank == constants.root ? execution->pass_on(index)
                                           : execution->reuse(index, part.input.shape);
    }
    execution_ = std::move(execution);
  }

  /// It is deleted when it is over, perhaps before this returns.
  void submit(const Constants& constants) {
    for (Part& part : parts_) {
      aiacc_tensor tensor{};
      tensor.dtype = core_dtype(part.input.dtype);
      tensor.dimensions = static_cast<std::uint32_t>(part.input.shape.size());
      tensor.shape = part.input.shape.data();
      tensor.input = part.input.data;
      tensor.output = part.output;
      aiacc_submission submission = AIACC_SUBMISSION_INIT;
      submission.kind = constants.kind;
      submission.name = part.name.c_str();
      submission.process_set = constants.process_set;
      submission.root = constants.root;
      submission.tensor_count = 1;
      submission.tensors = &tensor;
      submission.done = done;
      submission.context = &part;
      const std::int32_t code = aiacc_submit(&submission, nullptr);
      if (code != AIACC_OK) {  // the other ranks still get the rest
        part.end(code, aiacc_last_error());
      }
    }
    // Nobody waits in the core. Without a runtime the operations have failed meanwhile.
    (void)aiacc_flush();
    one_less();
  }

 private:
  struct Part {
    void end(std::int32_t code, const char* message) noexcept {
      try {
        problem = message;
      } catch (const std::exception&) {
        problem.clear();  // the code is told anyway
      }
      outcome = code;
      run->one_less();
    }

    Broadcasts* run = nullptr;
    std::string name;
    Input input{};
    void* output = nullptr;
    std::int32_t outcome = AIACC_OK;
    std::string problem;
  };

  static void done(void* context, const aiacc_status* status) {
    static_cast<Part*>(context)->end(status->code, status->message);
  }

  void one_less() noexcept {
    if (left_.fetch_sub(1) > 1) {
      return;
    }
    const std::unique_ptr<Broadcasts> ends(this);
    for (const Part& part : parts_) {
      if (part.outcome != AIACC_OK) {
        execution_->finish(error_code(part.outcome), part.problem.c_str());
        return;
      }
    }
    execution_->finish(kOk, "");
  }

  std::vector<Part> parts_;
  std::unique_ptr<Execution> execution_;
  /// Operations that are not over; the submission of them all counts as one.
  std::atomic<std::size_t> left_;
};

}  // namespace

void start_broadcasts(const Constants& constants, std::unique_ptr<Execution> execution) noexcept {
  std::unique_ptr<Broadcasts> run = make_run<Broadcasts>(constants, std::move(execution));
  if (run != nullptr) {
    run.release()->submit(constants);
  }
}

}  // namespace aiacc::tensorflow
