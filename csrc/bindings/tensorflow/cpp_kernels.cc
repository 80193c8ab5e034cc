// Registers the ops with one TensorFlow, through its C++ interface, when the library is loaded: for
// a TensorFlow that does not run the library of c_kernels.cc. aiacc/tensorflow/op_build.py compiles
// it on the machine that has that TensorFlow.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings/tensorflow/collective_kernel.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace aiacc::tensorflow {
namespace {

namespace tf = ::tensorflow;

/// If both libraries are in the process, their ops are the same and these kernels are taken.
constexpr int kPriority = 1;

void check(const absl::Status& status) {
  if (!status.ok()) {
    throw OpError{static_cast<int>(status.code()), std::string(status.message())};
  }
}

absl::Status status_of(int code, const std::string& message) {
  return {static_cast<absl::StatusCode>(code), message};
}

class CppAttributes final : public Attributes {
 public:
  explicit CppAttributes(tf::OpKernelConstruction& construction) : construction_(construction) {}

  std::string node_name() const override { return construction_.def().name(); }

  std::int64_t number(const char* name) const override { return get<std::int64_t>(name); }

  std::string text(const char* name) const override { return get<std::string>(name); }

  int length(const char* name) const override {
    return static_cast<int>(get<tf::DataTypeVector>(name).size());
  }

 private:
  template <class Value>
  Value get(const char* name) const {
    Value value{};
    check(construction_.GetAttr(name, &value));
    return value;
  }

  tf::OpKernelConstruction& construction_;
};

tf::TensorShape shape_from(const std::vector<std::int64_t>& extents) {
  tf::TensorShape shape;
  for (const std::int64_t extent : extents) {
    shape.AddDim(extent);
  }
  return shape;
}

class CppExecution final : public Execution {
 public:
  CppExecution(tf::OpKernelContext& context, tf::AsyncOpKernel::DoneCallback done)
      : context_(context), done_(std::move(done)) {}

  Input input(int index) override {
    const tf::Tensor& tensor = context_.input(index);
    Input input{tensor.dtype(), {}, tensor.data()};
    for (int i = 0; i < tensor.dims(); ++i) {
      input.shape.push_back(tensor.dim_size(i));
    }
    return input;
  }

  void* allocate(int index, int /*dtype*/, const std::vector<std::int64_t>& shape) override {
    tf::Tensor* tensor = nullptr;
    check(context_.allocate_output(index, shape_from(shape), &tensor));
    return tensor->data();
  }

  void* reuse(int index, const std::vector<std::int64_t>& shape) override {
    tf::Tensor* tensor = nullptr;
    check(context_.forward_input_or_allocate_output({index}, index, shape_from(shape), &tensor));
    return tensor->data();
  }

  void* pass_on(int index) override {
    const tf::Tensor& tensor = context_.input(index);
    context_.set_output(index, tensor);
    return tensor.data();
  }

  Iteration iteration() const override {
    const tf::FrameAndIter at = context_.frame_iter();
    return {at.frame_id, at.iter_id};
  }

  void finish(int code, const char* message) noexcept override {
    if (code != kOk) {
      context_.SetStatus(status_of(code, message));
    }
    done_();
  }

 private:
  tf::OpKernelContext& context_;
  const tf::AsyncOpKernel::DoneCallback done_;
};

class CppKernel final : public tf::AsyncOpKernel {
 public:
  CppKernel(tf::OpKernelConstruction* construction, const OpSpec& spec)
      : tf::AsyncOpKernel(construction) {
    try {
      kernel_ = make_kernel(spec, CppAttributes(*construction));
    } catch (const OpError& error) {
      construction->CtxFailure(status_of(error.code, error.message));
    }
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    kernel_->start(std::make_unique<CppExecution>(*context, std::move(done)));
  }

 private:
  std::unique_ptr<Kernel> kernel_;
};

class Factory final : public tf::kernel_factory::OpKernelFactory {
 public:
  explicit Factory(const OpSpec& spec) : spec_(spec) {}

  tf::OpKernel* Create(tf::OpKernelConstruction* construction) override {
    return new CppKernel(construction, spec_);
  }

 private:
  const OpSpec& spec_;
};

absl::Status define(const OpSpec& spec, tf::OpRegistrationData* data) {
  tf::OpDefBuilder builder(spec.name);
  for (const char* attribute : spec.attributes) {
    builder.Attr(attribute);
  }
  for (const char* input : spec.inputs) {
    builder.Input(input);
  }
  for (const char* output : spec.outputs) {
    builder.Output(output);
  }
  if (spec.stateful) {
    builder.SetIsStateful();
  }
  // Python tells the shapes: it knows the process set.
  builder.SetShapeFn([](tf::shape_inference::InferenceContext* context) {
    for (int i = 0; i < context->num_outputs(); ++i) {
      context->set_output(i, context->UnknownShape());
    }
    return absl::OkStatus();
  });
  return builder.Finalize(data);
}

bool register_all() {
  for (const OpSpec& spec : op_specs()) {
    tf::OpRegistry::Global()->Register(
        [&spec](tf::OpRegistrationData* data) { return define(spec, data); });
    tf::kernel_factory::OpKernelRegistrar(
        tf::KernelDefBuilder(spec.name).Device(tf::DEVICE_CPU).Priority(kPriority).Build(),
        spec.name,
        std::make_unique<Factory>(spec));
  }
  return true;
}

[[maybe_unused]] const bool registered = register_all();

}  // namespace
}  // namespace aiacc::tensorflow
