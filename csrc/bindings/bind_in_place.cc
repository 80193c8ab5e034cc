#include <memory>
#include <string>
#include <utility>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/guarded.h"
#include "csrc/bindings/host_tensor.h"
#include "csrc/bindings/python_arguments.h"
#include "csrc/core/runtime.h"

namespace py = pybind11;

namespace aiacc {
namespace {

/// Positions of the arguments of `allreduce_in_place`; see _core.pyi.
enum Argument : Py_ssize_t {
  kTensor,
  kName,
  kProcessSet,
  kOp,
  kPrescale,
  kPostscale,
  kArguments,
};

/// All of it is written, for the operation may have been another one.
void assign(Operation& operation, const HostTensor& tensor, PyObject* const* arguments) {
  static const std::string verb = name_of(OpKind::kAllreduce);
  Request& request = operation.request;
  request.kind = OpKind::kAllreduce;
  assign_op_name(request.name, verb, arguments[kName]);
  operation.series = request.name.empty() ? verb : "";
  request.tensors.resize(1);
  TensorSpec& spec = request.tensors.front();
  spec.shape.assign(tensor.shape, tensor.shape + tensor.dimensions);
  spec.dtype = tensor.dtype;
  request.process_set = static_cast<std::uint32_t>(integer(arguments[kProcessSet]));
  request.device = -1;
  request.op = reduce_op_from(static_cast<int>(integer(arguments[kOp])));
  request.prescale = number(arguments[kPrescale]);
  request.postscale = number(arguments[kPostscale]);
  request.wire = WireFormat::kTensor;
  request.root = 0;
  request.numbers.clear();
  operation.buffers.front().input = operation.buffers.front().output = tensor.address;
}

PyObject* allreduce_in_place(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    if (count != kArguments) {
      throw py::type_error("[submit] allreduce_in_place of " + std::to_string(count) +
                           " arguments (expected " + std::to_string(kArguments) + ")");
    }
    HostTensor tensor;
    if (!read_host_tensor(arguments[kTensor], tensor)) {
      return none();
    }
    const auto session = Runtime::instance().session();
    Coordinator& coordinator = session->coordinator();
    std::shared_ptr<Operation> operation = coordinator.acquire();
    assign(*operation, tensor, arguments);
    return PyLong_FromLongLong(coordinator.submit(std::move(operation)));
  });
}

PyMethodDef functions[] = {
    {"allreduce_in_place",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&allreduce_in_place)),
     METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_in_place(py::module_& module) {
  PyModule_AddFunctions(module.ptr(), functions);
  module.def("read_tensors_of", &read_tensors_of);
  module.attr("LOWEST_ADDRESS") = kLowestAddress;
}

}  // namespace aiacc
