#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/core/coordinator.h"
#include "tests/cpp/core/random_program.h"
#include "tests/cpp/kernels/elements.h"
#include "tests/cpp/support/submitter.h"

namespace aiacc {

/// One submitted step of one rank with its buffers, which end with it.
class SubmittedStep {
 public:
  SubmittedStep(const Program& program,
                const Step& step,
                int rank,
                std::uint32_t set,
                Coordinator& coordinator,
                Submitter& submitter)
      : program_(program),
        step_(step),
        rank_(rank),
        own_(static_cast<std::size_t>(index_in(program.members_of(step), rank))),
        coordinator_(coordinator),
        request_(step.request) {
    request_.process_set = set;
    for (std::size_t i = 0; step.gathers() && i < request_.tensors.size(); ++i) {
      TensorSpec& tensor = request_.tensors[i];
      const bool left_over = request_.kind == OpKind::kAlltoall && rank % 2 == 0;
      tensor.shape[0] = step.rows_of(own_, i) + (left_over ? 1 : 0);
    }
    if (request_.kind == OpKind::kAlltoall) {
      request_.numbers = step.rows[own_];
    }
    const auto operation = submitter.operation(request_, nullptr, nullptr);
    const bool on_gpu = operation->request.on_gpu();
    if (is_odd()) {
      step.disagreement->change(operation->request);
      if (!operation->request.on_gpu()) {
        operation->stream = nullptr;
      }
    }
    request_ = operation->request;
    memory_.resize(request_.tensors.size());
    operation->buffers.resize(request_.tensors.size());
    for (std::size_t i = 0; i < request_.tensors.size(); ++i) {
      allocate(i, on_gpu, operation->buffers[i]);
    }
    handle_ = coordinator.submit(operation);
  }

  /// Waits, in one of several ways. The error, unless the step was to end with one.
  Status finish(Submitter& submitter, std::mt19937& random) {
    std::thread another;
    if (random() % 16 == 0 && !step_.fails() && !program_.fails) {
      another = std::thread([&] {
        const Status status = status_of([&] { coordinator_.wait(handle_); });
        EXPECT_TRUE(status.ok()) << status.message();
      });
    } else if (random() % 8 == 0) {
      coordinator_.flush();
      yield_until([&] { return coordinator_.poll(handle_); });
    }
    const Status status = status_of([&] {
      const auto operation =
          request_.on_gpu() ? submitter.wait(handle_) : coordinator_.wait(handle_);
      submitter.settle();
      EXPECT_FALSE(step_.fails()) << request_.name;
      check(*operation, submitter);
    });
    if (another.joinable()) {
      another.join();
    }
    coordinator_.release(handle_);
    expect_error(status_of([&] { coordinator_.wait(handle_); }), Code::kInvalidArgument);
    if (status.code() == Code::kMismatch && step_.fails()) {
      check_error(status);
      return {};
    }
    return status;
  }

 private:
  struct Memory {
    std::vector<std::uint8_t> input;
    std::vector<std::uint8_t> output;
    std::vector<std::uint8_t> before;  ///< what `output` has held
    std::size_t input_at = 0;          ///< within `output`, if it is in place
  };

  bool is_odd() const {
    return step_.disagreement != nullptr && rank_ == program_.members_of(step_).back();
  }
  bool in_place() const { return step_.in_place && request_.kind != OpKind::kReducescatter; }
  /// Whether all rows have room in the memory of this rank: that of an all-gather in place.
  bool has_room(bool on_gpu) const {
    return request_.kind == OpKind::kAllgather && step_.in_place && !on_gpu;
  }

  void allocate(std::size_t index, bool on_gpu, TensorBuffers& buffers) {
    Memory& memory = memory_[index];
    const TensorSpec& tensor = request_.tensors[index];
    const std::size_t members = step_.rows.size();
    memory.input = numbers(index, tensor);
    std::size_t room = tensor.bytes();
    if (has_room(on_gpu)) {
      for (std::size_t from = 0; from < members; ++from) {
        room = std::max(room,
                        static_cast<std::size_t>(step_.rows_of(from, index)) * tensor.row_bytes());
      }
      memory.input_at = own_ * tensor.bytes();
      room = room * members + 1;
    } else if (request_.kind == OpKind::kReducescatter) {
      room = tensor.row_bytes() *
             static_cast<std::size_t>(scattered_rows(
                 tensor.shape[0], static_cast<int>(members), static_cast<int>(own_)));
    }
    memory.output.assign(room, 0xa5);
    if (in_place()) {
      std::copy(memory.input.begin(),
                memory.input.end(),
                memory.output.begin() + static_cast<std::ptrdiff_t>(memory.input_at));
    }
    memory.before = memory.output;
    buffers.input = in_place() ? memory.output.data() + memory.input_at : memory.input.data();
    buffers.output = step_.gathers() && !has_room(on_gpu) ? nullptr : memory.output.data();
  }

  std::vector<std::uint8_t> numbers(std::size_t index, const TensorSpec& tensor) const {
    std::vector<std::uint8_t> bytes(tensor.bytes());
    visit_dtype(tensor.dtype, [&](auto zero) {
      using T = decltype(zero);
      for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
        const T value = element_of<T>(given(step_, rank_, index, i));
        std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof value);
      }
    });
    return bytes;
  }

  /// It names the operation, and both who disagree; nothing has been written.
  void check_error(const Status& status) const {
    const std::vector<int>& members = program_.members_of(step_);
    std::vector<std::string> parts = {"'" + label_of(request_.process_set, request_.name) + "'"};
    if (step_.lonely) {
      const bool formed = program_.sets[step_.set].formed;  // then it depends on who is first
      parts.push_back(formed ? "process set " : "was removed before all its members had submitted");
    } else {
      for (const int rank : {members.front(), members.back()}) {
        parts.push_back("rank " + std::to_string(rank) + " submitted " + step_.disagreement->what);
      }
    }
    expect_error(status, Code::kMismatch, parts);
    for (const Memory& memory : memory_) {
      EXPECT_EQ(memory.before, memory.output) << "of a failed operation";
    }
  }

  void check(Operation& operation, Submitter& submitter) const {
    for (std::size_t i = 0; i < request_.tensors.size(); ++i) {
      const Memory& memory = memory_[i];
      const std::vector<double> wanted = expected(program_, step_, own_, i);
      bool equal_rows = true;
      std::vector<std::int64_t> extents;
      for (std::size_t from = 0; step_.gathers() && from < step_.rows.size(); ++from) {
        extents.push_back(request_.kind == OpKind::kAlltoall ? step_.rows[from][own_]
                                                             : step_.rows_of(from, i));
        equal_rows = equal_rows && extents.back() == extents.front();
      }
      if (step_.gathers()) {
        EXPECT_EQ(extents, operation.buffers[i].first_extents);
      }
      if (!in_place()) {
        EXPECT_EQ(numbers(i, request_.tensors[i]), memory.input) << "an input was written";
      }
      if (step_.gathers() && !(has_room(request_.on_gpu()) && equal_rows)) {
        const RawBytes gathered = submitter.gathered(operation, i);
        compare(i, gathered.data(), gathered.size(), wanted);
      } else if (request_.kind != OpKind::kBarrier) {
        EXPECT_TRUE(operation.buffers[i].gathered.empty());
        const std::size_t beyond = has_room(request_.on_gpu()) ? 1 : 0;
        compare(i, memory.output.data(), memory.output.size() - beyond, wanted);
        EXPECT_TRUE(beyond == 0 || memory.output.back() == 0xa5);
      }
    }
  }

  void compare(std::size_t index,
               const std::uint8_t* data,
               std::size_t bytes,
               const std::vector<double>& wanted) const {
    const DataType dtype = request_.tensors[index].dtype;
    ASSERT_EQ(bytes, wanted.size() * size_of(dtype)) << request_.name;
    // Sums are exact; factors of averages are not.
    const double error = request_.op != ReduceOp::kAverage ? 0
                         : size_of(dtype) == 2             ? 0x1p-7
                                                           : 1e-6;
    visit_dtype(dtype, [&](auto zero) {
      using T = decltype(zero);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        T value{};
        std::memcpy(&value, data + i * sizeof(T), sizeof value);
        const double got = number_of(value);
        const double good = number_of(element_of<T>(wanted[i]));
        ASSERT_LE(std::abs(got - good), error * std::abs(good))
            << name_of(request_.kind) << " " << request_.name << ", tensor " << index << " of "
            << name_of(dtype) << " as " << name_of(request_.wire) << ", " << name_of(request_.op)
            << ", at rank " << rank_ << ": element " << i << " is " << got;
      }
    });
  }

  const Program& program_;
  const Step& step_;
  const int rank_;
  const std::size_t own_;  ///< index among the members
  Coordinator& coordinator_;
  Request request_;
  std::vector<Memory> memory_;
  Handle handle_ = 0;
};

}  // namespace aiacc
