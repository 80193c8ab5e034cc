#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/base/raw_bytes.h"
#include "csrc/bindings/bindings.h"
#include "csrc/bindings/guarded.h"
#include "csrc/core/runtime.h"

namespace py = pybind11;

namespace aiacc {
namespace {

/// Whether a function of its own collects the result and releases the handle.
bool has_result(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall || kind == OpKind::kJoin;
}

void wait(PyObject* argument) {
  const Handle handle = PyLong_AsLongLong(argument);
  if (handle == -1 && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  if (coordinator.poll(handle)) {
    // The common case of the second handle of a step: done, so keep the GIL.
    const auto operation = coordinator.wait(handle);
    if (has_result(operation->request.kind)) {
      return;
    }
  } else {
    const py::gil_scoped_release release;
    const auto operation = coordinator.wait(handle, check_signals);
    if (has_result(operation->request.kind)) {
      return;
    }
  }
  coordinator.release(handle);
}

PyObject* call_wait(PyObject*, PyObject* argument) {
  return guarded([&] {
    wait(argument);
    Py_INCREF(Py_None);
    return Py_None;
  });
}

/// A finished operation whose handle is released with this object.
class Finished {
 public:
  Finished(Handle handle, OpKind kind, const char* function)
      : session_(Runtime::instance().session()), handle_(handle) {
    {
      const py::gil_scoped_release release;
      operation_ = session_->coordinator().wait(handle, check_signals);
    }
    if (operation_->request.kind != kind) {
      throw Error(Code::kInvalidArgument,
                  std::string("[handle] ") + function + " of " + name_of(operation_->request.kind) +
                      " (expected " + name_of(kind) + ")");
    }
    taken_ = true;
  }
  Finished(const Finished&) = delete;
  Finished& operator=(const Finished&) = delete;
  ~Finished() {
    operation_.reset();
    if (taken_) {
      session_->coordinator().release(handle_);
    }
  }

  Operation& operation() { return *operation_; }

  /// Bytes and shape of tensor `index`; the array takes the memory over.
  py::tuple output(std::size_t index) {
    TensorBuffers& buffers = operation_->tensor(index);
    std::vector<std::int64_t> shape = operation_->request.tensor(index).shape;
    shape.front() = 0;
    for (const std::int64_t extent : buffers.first_extents) {
      shape.front() += extent;
    }
    auto memory = std::make_unique<RawBytes>(std::move(buffers.gathered));
    const auto bytes = static_cast<py::ssize_t>(memory->size());
    std::uint8_t* data = memory->data();
    const py::capsule owner(memory.release(),
                            [](void* pointer) { delete static_cast<RawBytes*>(pointer); });
    return py::make_tuple(py::array_t<std::uint8_t>(bytes, data, owner),
                          py::tuple(py::cast(shape)));
  }

 private:
  std::shared_ptr<Session> session_;
  Handle handle_;
  std::shared_ptr<Operation> operation_;
  bool taken_ = false;
};

py::tuple take_output(Handle handle) {
  return Finished(handle, OpKind::kAllgather, "take_output").output(0);
}

py::list take_outputs(Handle handle) {
  Finished finished(handle, OpKind::kAllgather, "take_outputs");
  py::list outputs;
  for (std::size_t i = 0; i < finished.operation().request.tensors(); ++i) {
    outputs.append(finished.output(i));
  }
  return outputs;
}

py::tuple take_alltoall(Handle handle) {
  Finished finished(handle, OpKind::kAlltoall, "take_alltoall");
  const py::tuple received(py::cast(finished.operation().first_extents));
  const py::tuple output = finished.output(0);
  return py::make_tuple(output[0], output[1], received);
}

std::int64_t take_join(Handle handle) {
  return Finished(handle, OpKind::kJoin, "take_join").operation().value;
}

PyMethodDef hot_path[] = {
    {"wait", &call_wait, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_results(py::module_& module) {
  PyModule_AddFunctions(module.ptr(), hot_path);
  module.def("poll", [](Handle handle) {
    return Runtime::instance().session()->coordinator().poll(handle);
  });
  module.def("take_output", &take_output);
  module.def("take_outputs", &take_outputs);
  module.def("take_alltoall", &take_alltoall);
  module.def("take_join", &take_join);
}

}  // namespace aiacc
