#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/core/runtime.h"

namespace py = pybind11;

namespace aiacc {
namespace {

OpKind kind_from(int kind) {
  if (kind < 0 || kind >= kOpKinds) {
    throw Error(Code::kInvalidArgument,
                "[submit] operation kind " + std::to_string(kind) + " (expected 0.." +
                    std::to_string(kOpKinds - 1) + ")");
  }
  return static_cast<OpKind>(kind);
}

/// Local checks: what needs no other rank to be known as wrong.
void check(const Request& request, int size) {
  if (request.kind == OpKind::kAllgather && request.shape.empty()) {
    throw Error(Code::kInvalidArgument,
                "[submit] allgather of a 0-dimensional tensor (expected at least 1 dimension to "
                "concatenate along; reshape it to [1])");
  }
  if (request.kind == OpKind::kBroadcast && (request.root < 0 || request.root >= size)) {
    throw Error(Code::kInvalidArgument,
                "[submit] root_rank " + std::to_string(request.root) + " (expected 0.." +
                    std::to_string(size - 1) + ")");
  }
  if (request.kind == OpKind::kAllreduce && request.op == ReduceOp::kAdasum) {
    throw Error(Code::kInvalidArgument,
                "[submit] op=Adasum is not available yet (expected Average, Sum, Min, Max or "
                "Product)");
  }
}

constexpr Py_ssize_t kSubmitArguments = 11;

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

Handle submit(PyObject* const* arguments) {
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
  request.device = -1;
  request.prescale = number(arguments[8]);
  request.postscale = number(arguments[9]);
  request.process_set = static_cast<std::uint32_t>(integer(arguments[10]));
  check(request, session->placement().size);
  return coordinator.submit(std::move(operation));
}

/// Lets Python see a Ctrl-C that came during a wait without the GIL.
void check_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

void wait(PyObject* argument) {
  const Handle handle = integer(argument);
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  if (coordinator.poll(handle)) {
    // The common case of the second handle of a step: done, so keep the GIL.
    const auto operation = coordinator.wait(handle);
    if (operation->request.kind == OpKind::kAllgather) {
      return;
    }
  } else {
    const py::gil_scoped_release release;
    const auto operation = coordinator.wait(handle, check_signals);
    if (operation->request.kind == OpKind::kAllgather) {
      return;
    }
  }
  coordinator.release(handle);
}

py::tuple take_output(Handle handle) {
  const auto session = Runtime::instance().session();
  std::shared_ptr<Operation> operation;
  {
    const py::gil_scoped_release release;
    operation = session->coordinator().wait(handle, check_signals);
  }
  std::vector<std::int64_t> shape = operation->request.shape;
  if (operation->request.kind != OpKind::kAllgather) {
    throw Error(Code::kInvalidArgument,
                "[handle] take_output of " + std::string(name_of(operation->request.kind)) +
                    " (expected allgather)");
  }
  shape.front() = 0;
  for (const std::int64_t extent : operation->first_extents) {
    shape.front() += extent;
  }
  auto memory = std::make_unique<std::vector<std::uint8_t>>(std::move(operation->gathered));
  operation.reset();
  session->coordinator().release(handle);
  const auto bytes = static_cast<py::ssize_t>(memory->size());
  std::uint8_t* data = memory->data();
  const py::capsule owner(memory.release(), [](void* pointer) {
    delete static_cast<std::vector<std::uint8_t>*>(pointer);
  });
  return py::make_tuple(py::array_t<std::uint8_t>(bytes, data, owner), py::tuple(py::cast(shape)));
}

/// What pybind11's dispatcher does for other functions: no C++ exception reaches Python.
template <class Body>
PyObject* guarded(Body body) noexcept {
  try {
    return body();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const Error& error) {
    set_python_error(error);
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* call_submit(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    if (count != kSubmitArguments) {
      throw py::type_error("[submit] " + std::to_string(count) + " arguments (expected " +
                           std::to_string(kSubmitArguments) + ")");
    }
    return PyLong_FromLongLong(submit(arguments));
  });
}

PyObject* call_wait(PyObject*, PyObject* argument) {
  return guarded([&] {
    wait(argument);
    Py_INCREF(Py_None);
    return Py_None;
  });
}

/// Called once per tensor and step: without the argument loader of pybind11, which costs as much as
/// the submission itself.
PyMethodDef hot_path[] = {
    {"submit",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_submit)),
     METH_FASTCALL,
     nullptr},
    {"wait", &call_wait, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_operations(py::module_& module) {
  module.attr("ALLREDUCE") = static_cast<int>(OpKind::kAllreduce);
  module.attr("ALLGATHER") = static_cast<int>(OpKind::kAllgather);
  module.attr("BROADCAST") = static_cast<int>(OpKind::kBroadcast);
  module.attr("BARRIER") = static_cast<int>(OpKind::kBarrier);
  PyModule_AddFunctions(module.ptr(), hot_path);
  module.def("poll", [](Handle handle) {
    return Runtime::instance().session()->coordinator().poll(handle);
  });
  module.def("take_output", &take_output);
  module.def("flush", [] { Runtime::instance().session()->coordinator().flush(); });
}

}  // namespace aiacc
