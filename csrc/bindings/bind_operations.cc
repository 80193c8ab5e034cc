#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/guarded.h"
#include "csrc/core/runtime.h"

namespace py = pybind11;

namespace aiacc {
namespace {

OpKind kind_from(int kind) {
  // Process sets change through functions of their own.
  if (kind < 0 || kind > static_cast<int>(OpKind::kJoin)) {
    throw Error(Code::kInvalidArgument,
                "[submit] operation kind " + std::to_string(kind) + " (expected 0.." +
                    std::to_string(static_cast<int>(OpKind::kJoin)) + ")");
  }
  return static_cast<OpKind>(kind);
}

WireFormat wire_from(int wire) {
  if (wire < 0 || wire >= kWireFormats) {
    throw Error(Code::kInvalidArgument,
                "[submit] wire format " + std::to_string(wire) + " (expected 0.." +
                    std::to_string(kWireFormats - 1) + ")");
  }
  return static_cast<WireFormat>(wire);
}

/// Without the device and the stream, with them, and with the wire format after these.
constexpr Py_ssize_t kHostArguments = 11;
constexpr Py_ssize_t kDeviceArguments = 13;
constexpr Py_ssize_t kWireArguments = 14;

long long integer(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value;
}

void* address(PyObject* object) {
  void* value = PyLong_AsVoidPtr(object);
  if (value == nullptr && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value;
}

double number(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  return value;
}

void assign_text(std::string& target, PyObject* object) {
  Py_ssize_t bytes = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &bytes);
  if (text == nullptr) {
    throw py::error_already_set();
  }
  target.assign(text, static_cast<std::size_t>(bytes));
}

void assign_shape(std::vector<std::int64_t>& target, PyObject* object) {
  if (!PyTuple_Check(object)) {
    throw py::type_error("[submit] shape: expected a tuple");
  }
  target.clear();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    target.push_back(integer(PyTuple_GET_ITEM(object, i)));
    if (target.back() < 0) {
      throw Error(Code::kInvalidArgument,
                  "[submit] shape with extent " + std::to_string(target.back()) +
                      " (expected extents >= 0)");
    }
  }
}

Handle submit(PyObject* const* arguments, Py_ssize_t count) {
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  std::shared_ptr<Operation> operation = coordinator.acquire();
  Request& request = operation->request;
  request.kind = kind_from(static_cast<int>(integer(arguments[0])));
  assign_text(request.name, arguments[1]);
  operation->input = address(arguments[2]);
  operation->output = address(arguments[3]);
  assign_shape(request.shape, arguments[4]);
  request.dtype = dtype_from(static_cast<int>(integer(arguments[5])));
  request.op = reduce_op_from(static_cast<int>(integer(arguments[6])));
  request.root = static_cast<int>(integer(arguments[7]));
  const bool placed = count >= kDeviceArguments;
  request.device = placed ? static_cast<std::int32_t>(integer(arguments[11])) : -1;
  operation->stream = placed ? static_cast<CudaStream>(address(arguments[12])) : nullptr;
  request.wire = count == kWireArguments ? wire_from(static_cast<int>(integer(arguments[13])))
                                         : WireFormat::kTensor;
  request.prescale = number(arguments[8]);
  request.postscale = number(arguments[9]);
  request.process_set = static_cast<std::uint32_t>(integer(arguments[10]));
  return coordinator.submit(std::move(operation));
}

/// An operation of the current session whose request has no value of an earlier one.
std::shared_ptr<Operation> blank_operation(Coordinator& coordinator) {
  std::shared_ptr<Operation> operation = coordinator.acquire();
  operation->request = {};
  return operation;
}

PyObject* item(const py::tuple& items, std::size_t index) {
  return PyTuple_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(index));
}

Handle submit_alltoall(const py::str& name,
                       std::uintptr_t input,
                       const py::tuple& shape,
                       int dtype,
                       const std::vector<std::int64_t>& splits,
                       std::uint32_t process_set,
                       std::int32_t device,
                       std::uintptr_t stream) {
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  std::shared_ptr<Operation> operation = blank_operation(coordinator);
  Request& request = operation->request;
  request.kind = OpKind::kAlltoall;
  assign_text(request.name, name.ptr());
  operation->input = reinterpret_cast<const void*>(input);  // NOLINT(performance-no-int-to-ptr)
  operation->output = nullptr;
  assign_shape(request.shape, shape.ptr());
  request.dtype = dtype_from(dtype);
  request.numbers = splits;
  request.process_set = process_set;
  request.device = device;
  operation->stream = reinterpret_cast<CudaStream>(stream);  // NOLINT(performance-no-int-to-ptr)
  return coordinator.submit(std::move(operation));
}

Handle submit_group(int kind,
                    const py::str& name,
                    const py::tuple& inputs,
                    const py::tuple& outputs,
                    const py::tuple& shapes,
                    const py::tuple& dtypes,
                    int op,
                    double prescale,
                    double postscale,
                    std::uint32_t process_set,
                    std::int32_t device,
                    std::uintptr_t stream,
                    int wire) {
  const std::size_t tensors = inputs.size();
  if (tensors == 0 || outputs.size() != tensors || shapes.size() != tensors ||
      dtypes.size() != tensors) {
    throw Error(Code::kInvalidArgument,
                "[submit] a group of " + std::to_string(tensors) + " inputs, " +
                    std::to_string(outputs.size()) + " outputs, " + std::to_string(shapes.size()) +
                    " shapes and " + std::to_string(dtypes.size()) +
                    " dtypes (expected equally many, at least 1)");
  }
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  std::shared_ptr<Operation> operation = blank_operation(coordinator);
  Request& request = operation->request;
  request.kind = kind_from(kind);
  if (request.kind != OpKind::kAllreduce && request.kind != OpKind::kAllgather &&
      request.kind != OpKind::kReducescatter) {
    throw Error(Code::kInvalidArgument,
                std::string("[submit] a group of ") + name_of(request.kind) +
                    " (expected allreduce, allgather or reducescatter)");
  }
  assign_text(request.name, name.ptr());
  request.more.resize(tensors - 1);
  operation->more.resize(tensors - 1);
  for (std::size_t i = 0; i < tensors; ++i) {
    TensorSpec& spec = i == 0 ? request : request.more[i - 1];
    assign_shape(spec.shape, item(shapes, i));
    spec.dtype = dtype_from(static_cast<int>(integer(item(dtypes, i))));
    operation->tensor(i).input = address(item(inputs, i));
    operation->tensor(i).output = address(item(outputs, i));
  }
  request.op = reduce_op_from(op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.process_set = process_set;
  request.device = device;
  request.wire = wire_from(wire);
  operation->stream = reinterpret_cast<CudaStream>(stream);  // NOLINT(performance-no-int-to-ptr)
  return coordinator.submit(std::move(operation));
}

PyObject* call_submit(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    if (count != kHostArguments && count != kDeviceArguments && count != kWireArguments) {
      throw py::type_error("[submit] " + std::to_string(count) + " arguments (expected " +
                           std::to_string(kHostArguments) + ", " +
                           std::to_string(kDeviceArguments) + " or " +
                           std::to_string(kWireArguments) + ")");
    }
    return PyLong_FromLongLong(submit(arguments, count));
  });
}

/// Called once per tensor and step: without the argument loader of pybind11, which costs as much as
/// the submission itself.
PyMethodDef hot_path[] = {
    {"submit",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_submit)),
     METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_operations(py::module_& module) {
  module.attr("ALLREDUCE") = static_cast<int>(OpKind::kAllreduce);
  module.attr("ALLGATHER") = static_cast<int>(OpKind::kAllgather);
  module.attr("BROADCAST") = static_cast<int>(OpKind::kBroadcast);
  module.attr("BARRIER") = static_cast<int>(OpKind::kBarrier);
  module.attr("ALLTOALL") = static_cast<int>(OpKind::kAlltoall);
  module.attr("REDUCESCATTER") = static_cast<int>(OpKind::kReducescatter);
  module.attr("JOIN") = static_cast<int>(OpKind::kJoin);
  PyModule_AddFunctions(module.ptr(), hot_path);
  module.def("submit_alltoall",
             &submit_alltoall,
             py::arg("name"),
             py::arg("input"),
             py::arg("shape"),
             py::arg("dtype"),
             py::arg("splits"),
             py::arg("process_set"),
             py::arg("device") = -1,
             py::arg("stream") = 0);
  module.def("submit_group",
             &submit_group,
             py::arg("kind"),
             py::arg("name"),
             py::arg("inputs"),
             py::arg("outputs"),
             py::arg("shapes"),
             py::arg("dtypes"),
             py::arg("op"),
             py::arg("prescale"),
             py::arg("postscale"),
             py::arg("process_set"),
             py::arg("device") = -1,
             py::arg("stream") = 0,
             py::arg("wire") = 0);
  module.def("flush", [] { Runtime::instance().session()->coordinator().flush(); });
}

}  // namespace aiacc
