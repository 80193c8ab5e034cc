#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/guarded.h"
#include "csrc/bindings/host_tensor.h"
#include "csrc/bindings/python_arguments.h"
#include "csrc/bindings/request_arguments.h"
#include "csrc/core/runtime.h"

namespace py = pybind11;

namespace aiacc {
namespace {

/// What Python knows as a Submission. Written by `prepare` alone.
struct Submission {
  PyObject_HEAD;
  Request request;
  std::string verb;
};

PyTypeObject* submission_type = nullptr;

/// The integers of a tuple; torch's sizes are tuples.
void assign_integers(std::vector<std::int64_t>& values, PyObject* object, const char* what) {
  if (!PyTuple_Check(object)) {
    throw py::type_error(std::string("[submit] ") + what + ": expected a tuple");
  }
  values.clear();
  values.reserve(static_cast<std::size_t>(PyTuple_GET_SIZE(object)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    values.push_back(integer(PyTuple_GET_ITEM(object, i)));
  }
}

void assign_spec(TensorSpec& spec, PyObject* shape, PyObject* dtype) {
  assign_integers(spec.shape, shape, "shape");
  check_extents(spec);
  spec.dtype = dtype_from(static_cast<int>(integer(dtype)));
}

/// A group has a tuple of shapes and one of dtypes.
void assign_group(Request& request, PyObject* shapes, PyObject* dtypes) {
  check_group(request.kind);
  const Py_ssize_t tensors = PyTuple_GET_SIZE(dtypes);
  if (!PyTuple_Check(shapes) || PyTuple_GET_SIZE(shapes) != tensors || tensors == 0) {
    throw Error(Code::kInvalidArgument,
                "[submit] a group with " + std::to_string(tensors) +
                    " dtypes (expected as many shapes, at least 1)");
  }
  request.tensors.resize(static_cast<std::size_t>(tensors));
  for (Py_ssize_t i = 0; i < tensors; ++i) {
    assign_spec(request.tensors[static_cast<std::size_t>(i)],
                PyTuple_GET_ITEM(shapes, i),
                PyTuple_GET_ITEM(dtypes, i));
  }
}

/// Positions of the arguments of `prepare`; see _core.pyi.
enum Argument : Py_ssize_t {
  kKind,
  kVerb,
  kName,
  kShape,
  kDtype,
  kProcessSet,
  kDevice,
  kOp,
  kPrescale,
  kPostscale,
  kWire,
  kRoot,
  kSplits,
  kArguments,
};
constexpr Py_ssize_t kRequired = kDevice + 1;

void assign(Submission& submission, PyObject* const* arguments, Py_ssize_t count) {
  Request& request = submission.request;
  submission.verb.clear();
  append_text(submission.verb, arguments[kVerb]);
  request.kind = kind_from(integer(arguments[kKind]));
  assign_op_name(request.name, submission.verb, arguments[kName]);
  if (PyTuple_Check(arguments[kDtype])) {
    assign_group(request, arguments[kShape], arguments[kDtype]);
  } else {
    request.tensors.resize(1);
    assign_spec(request.tensors.front(), arguments[kShape], arguments[kDtype]);
  }
  request.process_set = static_cast<std::uint32_t>(integer(arguments[kProcessSet]));
  request.device = static_cast<std::int32_t>(integer(arguments[kDevice]));
  request.op =
      count > kOp ? reduce_op_from(static_cast<int>(integer(arguments[kOp]))) : ReduceOp::kSum;
  request.prescale = count > kPrescale ? number(arguments[kPrescale]) : 1.0;
  request.postscale = count > kPostscale ? number(arguments[kPostscale]) : 1.0;
  assign_wire(request, count > kWire ? integer(arguments[kWire]) : 0);
  request.root = count > kRoot ? static_cast<std::int32_t>(integer(arguments[kRoot])) : 0;
  request.numbers.clear();
  if (count > kSplits) {
    assign_integers(request.numbers, arguments[kSplits], "splits");
  }
}

/// One that was given up, kept for its memory: a single call makes and drops one. Under the GIL.
Submission* spare = nullptr;

/// With whatever the spare one has held.
Submission* acquire() {
  if (spare != nullptr) {
    Submission* submission = std::exchange(spare, nullptr);
    PyObject_Init(&submission->ob_base, submission_type);
    return submission;
  }
  auto* submission = PyObject_New(Submission, submission_type);
  if (submission == nullptr) {
    throw py::error_already_set();
  }
  new (&submission->request) Request();
  new (&submission->verb) std::string();
  return submission;
}

PyObject* prepare(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    if (count < kRequired || count > kArguments) {
      throw py::type_error("[submit] prepare of " + std::to_string(count) +
                           " arguments (expected " + std::to_string(kRequired) + " to " +
                           std::to_string(kArguments) + ")");
    }
    Submission* submission = acquire();
    auto owner = py::reinterpret_steal<py::object>(&submission->ob_base);
    assign(*submission, arguments, count);
    return owner.release().ptr();
  });
}

/// Address `index` of what `start` was given for a request of `tensors`.
PyObject* item(PyObject* addresses, std::size_t index, std::size_t tensors) {
  if (!PyTuple_Check(addresses) ||
      static_cast<std::size_t>(PyTuple_GET_SIZE(addresses)) != tensors) {
    throw py::type_error("[submit] start of a group of " + std::to_string(tensors) +
                         " (expected tuples of as many addresses)");
  }
  return PyTuple_GET_ITEM(addresses, static_cast<Py_ssize_t>(index));
}

std::shared_ptr<Operation> operation_of(const Submission& submission, Coordinator& coordinator) {
  std::shared_ptr<Operation> operation = coordinator.acquire();
  operation->request = submission.request;
  operation->series = submission.request.name.empty() ? submission.verb : "";
  return operation;
}

Handle start(const Submission& submission, PyObject* const* arguments, Py_ssize_t count) {
  const Request& prepared = submission.request;
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  std::shared_ptr<Operation> operation = operation_of(submission, coordinator);
  operation->stream = count > 2 ? static_cast<CudaStream>(address(arguments[2])) : nullptr;
  PyObject* residuals = count > 3 ? arguments[3] : nullptr;
  if (PyLong_Check(arguments[0]) && prepared.tensors.size() == 1) {
    operation->buffers.front().input = address(arguments[0]);
    operation->buffers.front().output = address(arguments[1]);
    operation->buffers.front().residual = residuals == nullptr ? nullptr : address(residuals);
  } else {
    const std::size_t tensors = prepared.tensors.size();
    operation->buffers.resize(tensors);
    for (std::size_t i = 0; i < tensors; ++i) {
      operation->buffers[i].input = address(item(arguments[0], i, tensors));
      operation->buffers[i].output = address(item(arguments[1], i, tensors));
      operation->buffers[i].residual =
          residuals == nullptr ? nullptr : address(item(residuals, i, tensors));
    }
  }
  return coordinator.submit(std::move(operation));
}

PyObject* call_start(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    if (count < 2 || count > 4) {
      throw py::type_error("[submit] start of " + std::to_string(count) +
                           " arguments (expected input and output, a stream for CUDA, and where "
                           "residuals are)");
    }
    return PyLong_FromLongLong(start(*reinterpret_cast<Submission*>(self), arguments, count));
  });
}

bool fits(const TensorSpec& spec, const HostTensor& tensor) {
  return spec.dtype == tensor.dtype &&
         std::equal(
             spec.shape.begin(), spec.shape.end(), tensor.shape, tensor.shape + tensor.dimensions);
}

/// Where the tensors are; empty unless they are in host memory, and what was prepared.
std::vector<void*> addresses_of(const Request& prepared,
                                PyObject* const* tensors,
                                std::size_t count) {
  std::vector<void*> addresses;
  if (prepared.on_gpu() || count != prepared.tensors.size()) {
    return addresses;
  }
  addresses.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    HostTensor tensor;
    if (!read_host_tensor(tensors[i], tensor) || !fits(prepared.tensors[i], tensor)) {
      return {};
    }
    addresses.push_back(tensor.address);
  }
  return addresses;
}

PyObject* start_in_place(PyObject* self, PyObject* const* tensors, Py_ssize_t count) {
  return guarded([&] {
    const auto& submission = *reinterpret_cast<Submission*>(self);
    const auto addresses =
        addresses_of(submission.request, tensors, static_cast<std::size_t>(count));
    if (addresses.empty()) {
      return none();
    }
    const auto session = Runtime::instance().session();
    Coordinator& coordinator = session->coordinator();
    std::shared_ptr<Operation> operation = operation_of(submission, coordinator);
    operation->buffers.resize(addresses.size());
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      operation->buffers[i].input = operation->buffers[i].output = addresses[i];
    }
    return PyLong_FromLongLong(coordinator.submit(std::move(operation)));
  });
}

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  auto* submission = reinterpret_cast<Submission*>(self);
  if (spare == nullptr) {
    spare = submission;
  } else {
    submission->request.~Request();
    submission->verb.~basic_string();
    PyObject_Free(self);
  }
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"start",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_start)),
     METH_FASTCALL,
     nullptr},
    {"start_in_place",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&start_in_place)),
     METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyMethodDef functions[] = {
    {"prepare",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&prepare)),
     METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(&deallocate)},
    {Py_tp_methods, methods},
    {0, nullptr},
};
PyType_Spec spec = {"aiacc._core.Submission",
                    static_cast<int>(sizeof(Submission)),
                    0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                    slots};

}  // namespace

void bind_submission(py::module_& module) {
  module.attr("ALLREDUCE") = static_cast<int>(OpKind::kAllreduce);
  module.attr("ALLGATHER") = static_cast<int>(OpKind::kAllgather);
  module.attr("BROADCAST") = static_cast<int>(OpKind::kBroadcast);
  module.attr("BARRIER") = static_cast<int>(OpKind::kBarrier);
  module.attr("ALLTOALL") = static_cast<int>(OpKind::kAlltoall);
  module.attr("REDUCESCATTER") = static_cast<int>(OpKind::kReducescatter);
  module.attr("JOIN") = static_cast<int>(OpKind::kJoin);
  submission_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  if (submission_type == nullptr) {
    throw py::error_already_set();
  }
  module.attr("Submission") = py::handle(reinterpret_cast<PyObject*>(submission_type));
  PyModule_AddFunctions(module.ptr(), functions);
  module.def("flush", [] { Runtime::instance().session()->coordinator().flush(); });
}

}  // namespace aiacc
