// Registers the ops with TensorFlow, through its C interface, when the library is loaded.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings/tensorflow/collective_kernel.h"
#include "csrc/bindings/tensorflow/data_types.h"
#include "csrc/bindings/tensorflow/done_callback.h"
#include "csrc/bindings/tensorflow/tensorflow_abi.h"

namespace aiacc::tensorflow {
namespace {

/// A TF_Status to be passed to one function.
class StatusOf {
 public:
  StatusOf() : status_(TF_NewStatus(), TF_DeleteStatus) {}
  StatusOf(int code, const char* message) : StatusOf() { TF_SetStatus(get(), code, message); }

  TF_Status* get() const { return status_.get(); }
  void check() const {
    if (TF_GetCode(get()) != kOk) {
      throw OpError{TF_GetCode(get()), TF_Message(get())};
    }
  }

 private:
  std::unique_ptr<TF_Status, decltype(&TF_DeleteStatus)> status_;
};

using Tensor = std::unique_ptr<TF_Tensor, decltype(&TF_DeleteTensor)>;

class CAttributes final : public Attributes {
 public:
  explicit CAttributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  std::string node_name() const override {
    const TF_StringView name = TF_OpKernelConstruction_GetName(construction_);
    return {name.data, name.len};
  }

  std::int64_t number(const char* name) const override {
    std::int64_t value = 0;
    const StatusOf status;
    TF_OpKernelConstruction_GetAttrInt64(construction_, name, &value, status.get());
    status.check();
    return value;
  }

  std::string text(const char* name) const override {
    std::string value(sizes(name).second, '\0');
    if (!value.empty()) {
      const StatusOf status;
      TF_OpKernelConstruction_GetAttrString(
          construction_, name, value.data(), value.size(), status.get());
      status.check();
    }
    return value;
  }

  int length(const char* name) const override { return sizes(name).first; }

 private:
  /// Entries of a list; characters of a text.
  std::pair<int, int> sizes(const char* name) const {
    std::int32_t entries = 0;
    std::int32_t characters = 0;
    const StatusOf status;
    TF_OpKernelConstruction_GetAttrSize(construction_, name, &entries, &characters, status.get());
    status.check();
    return {entries, characters};
  }

  TF_OpKernelConstruction* const construction_;
};

class CExecution final : public Execution {
 public:
  CExecution(TF_OpKernelContext* context, std::function<void()> done)
      : context_(context), done_(std::move(done)) {}

  Input input(int index) override {
    TF_Tensor* found = nullptr;
    const StatusOf status;
    TF_GetInput(context_, index, &found, status.get());
    const Tensor tensor(found, TF_DeleteTensor);
    status.check();
    Input input{TF_TensorType(found), {}, TF_TensorData(found)};
    for (int i = 0; i < TF_NumDims(found); ++i) {
      input.shape.push_back(TF_Dim(found, i));
    }
    return input;
  }

  void* allocate(int index, int dtype, const std::vector<std::int64_t>& shape) override {
    std::size_t bytes = element_bytes(core_dtype(dtype));
    for (const std::int64_t extent : shape) {
      bytes *= extent;
    }
    const StatusOf status;
    const Tensor tensor(TF_AllocateOutput(context_,
                                          index,
                                          dtype,
                                          shape.data(),
                                          static_cast<int>(shape.size()),
                                          bytes,
                                          status.get()),
                        TF_DeleteTensor);
    status.check();
    return TF_TensorData(tensor.get());
  }

  void* reuse(int index, const std::vector<std::int64_t>& shape) override {
    int forwarded = -1;
    const StatusOf status;
    const Tensor tensor(TF_ForwardInputOrAllocateOutput(context_,
                                                        &index,
                                                        1,
                                                        index,
                                                        shape.data(),
                                                        static_cast<int>(shape.size()),
                                                        &forwarded,
                                                        status.get()),
                        TF_DeleteTensor);
    status.check();
    return TF_TensorData(tensor.get());
  }

  void* pass_on(int index) override {
    TF_Tensor* found = nullptr;
    const StatusOf status;
    TF_GetInput(context_, index, &found, status.get());
    const Tensor tensor(found, TF_DeleteTensor);
    status.check();
    TF_SetOutput(context_, index, found, status.get());
    status.check();
    return TF_TensorData(found);
  }

  Iteration iteration() const override { return {TF_GetFrameId(context_), TF_GetIterId(context_)}; }

  void finish(int code, const char* message) noexcept override {
    if (code != kOk) {
      TF_OpKernelContext_Failure(context_, StatusOf(code, message).get());
    }
    done_();
  }

 private:
  TF_OpKernelContext* const context_;
  const std::function<void()> done_;
};

template <std::size_t op>
void* create(TF_OpKernelConstruction* construction) {
  try {
    return make_kernel(op_specs()[op], CAttributes(construction)).release();
  } catch (const OpError& error) {
    TF_OpKernelConstruction_Failure(construction,
                                    StatusOf(error.code, error.message.c_str()).get());
    return nullptr;
  }
}

void compute(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  static const bool copies = can_copy(done);
  if (!copies) {
    const StatusOf status(kUnimplemented, "the callback of asynchronous kernels cannot be copied");
    TF_OpKernelContext_Failure(context, status.get());
    TF_RunAsyncOpKernelDoneCallback(done);
    return;
  }
  static_cast<const Kernel*>(kernel)->start(std::make_unique<CExecution>(context, copy_of(done)));
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

void define(const OpSpec& spec) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(spec.name);
  for (const char* attribute : spec.attributes) {
    TF_OpDefinitionBuilderAddAttr(builder, attribute);
  }
  for (const char* input : spec.inputs) {
    TF_OpDefinitionBuilderAddInput(builder, input);
  }
  for (const char* output : spec.outputs) {
    TF_OpDefinitionBuilderAddOutput(builder, output);
  }
  if (spec.stateful) {  // whatever it is called with, the op is stateful then
    TF_OpDefinitionBuilderSetIsStateful(builder, true);
  }
  // Python tells the shapes: it knows the process set.
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, TF_ShapeInferenceContextSetUnknownShape);
  const StatusOf status;
  TF_RegisterOpDefinition(builder, status.get());
  status.check();
}

template <std::size_t op>
void register_op() {
  const OpSpec& spec = op_specs()[op];
  define(spec);
  TF_KernelBuilder* builder =
      TF_NewAsyncKernelBuilder(spec.name, "CPU", create<op>, compute, destroy);
  const StatusOf status;
  TF_RegisterKernelBuilder(spec.name, builder, status.get());
  status.check();
}

template <std::size_t... ops>
bool register_all(std::index_sequence<ops...> /*numbers*/) noexcept {
  try {
    (register_op<ops>(), ...);
    return true;
  } catch (const OpError&) {
    return false;  // an op is missing then, and Python says which
  }
}

constexpr std::size_t kOps = 11;

[[maybe_unused]] const bool registered =
    op_specs().size() == kOps && register_all(std::make_index_sequence<kOps>());

}  // namespace
}  // namespace aiacc::tensorflow
