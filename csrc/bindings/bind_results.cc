#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/base/raw_bytes.h"
#include "csrc/bindings/bindings.h"
#include "csrc/bindings/guarded.h"
#include "csrc/bindings/python_arguments.h"
#include "csrc/core/runtime.h"

namespace py = pybind11;

namespace aiacc {
namespace {

/// Whether a function of its own collects the result and releases the handle.
bool has_result(const Request& request) {
  return request.kind == OpKind::kAllgather || request.kind == OpKind::kAlltoall ||
         request.kind == OpKind::kJoin || (request.kind == OpKind::kReceive && request.root < 0);
}

/// Whether what travelled was coded: it is not on one host, nor while a member has joined.
bool wait(PyObject* const* arguments, Py_ssize_t count) {
  const Handle handle = PyLong_AsLongLong(arguments[0]);
  void* stream = count > 1 ? PyLong_AsVoidPtr(arguments[1]) : nullptr;
  if (PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  std::shared_ptr<Operation> operation;
  if (coordinator.poll(handle)) {
    // The common case of the second handle of a step: done, so keep the GIL.
    operation = coordinator.wait(handle);
  } else {
    const py::gil_scoped_release release;
    operation = coordinator.wait(handle, check_signals);
  }
  if (operation->request.on_gpu()) {
    coordinator.device_path().order_after(*operation, static_cast<CudaStream>(stream));
  }
  if (!has_result(operation->request)) {
    coordinator.release(handle);
  }
  return is_coded(operation->request.wire);
}

PyObject* call_wait(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return guarded([&] {
    if (count != 1 && count != 2) {
      throw py::type_error("[handle] wait of " + std::to_string(count) +
                           " arguments (expected a handle, and a stream for CUDA)");
    }
    return PyBool_FromLong(wait(arguments, count) ? 1 : 0);
  });
}

/// When an operation was submitted and finished, in seconds of the monotonic clock.
py::tuple times(Handle handle) {
  const auto session = Runtime::instance().session();
  std::shared_ptr<Operation> operation;
  {
    const py::gil_scoped_release release;
    operation = session->coordinator().wait(handle, check_signals);
  }
  const auto seconds = [](Clock::time_point moment) {
    return std::chrono::duration<double>(moment.time_since_epoch()).count();
  };
  return py::make_tuple(seconds(operation->submitted), seconds(operation->finished));
}

/// Shape of what an all-gather or all-to-all gave.
std::vector<std::int64_t> shape_of(Operation& operation, std::size_t index) {
  std::vector<std::int64_t> shape = operation.request.tensors[index].shape;
  const auto& rows = operation.buffers[index].first_extents;
  shape.front() = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  return shape;
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
    TensorBuffers& buffers = operation_->buffers[index];
    const std::vector<std::int64_t> shape = shape_of(*operation_, index);
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
  for (std::size_t i = 0; i < finished.operation().request.tensors.size(); ++i) {
    outputs.append(finished.output(i));
  }
  return outputs;
}

py::tuple take_alltoall(Handle handle) {
  Finished finished(handle, OpKind::kAlltoall, "take_alltoall");
  const py::tuple received(py::cast(finished.operation().buffers.front().first_extents));
  const py::tuple output = finished.output(0);
  return py::make_tuple(output[0], output[1], received);
}

py::list output_shapes(Handle handle) {
  const auto session = Runtime::instance().session();
  std::shared_ptr<Operation> operation;
  {
    const py::gil_scoped_release release;
    operation = session->coordinator().wait(handle, check_signals);
  }
  py::list shapes;
  for (std::size_t i = 0; i < operation->request.tensors.size(); ++i) {
    shapes.append(py::tuple(py::cast(shape_of(*operation, i))));
  }
  return shapes;
}

py::tuple take_into(Handle handle, const std::vector<std::uintptr_t>& outputs, std::uintptr_t to) {
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  const auto operation = coordinator.wait(handle);
  const Request& request = operation->request;
  if (!request.on_gpu() || outputs.size() != request.tensors.size()) {
    throw Error(Code::kInvalidArgument,
                "[handle] take_into of " + std::to_string(outputs.size()) + " outputs (expected " +
                    std::to_string(request.tensors.size()) + ", of tensors on a GPU)");
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<std::int64_t> shape = shape_of(*operation, i);
    const auto rows = static_cast<std::uint64_t>(shape.front());
    check_address(outputs[i], rows * request.tensors[i].row_elements(), "output");
  }
  auto* stream = reinterpret_cast<CudaStream>(to);  // NOLINT(performance-no-int-to-ptr)
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    coordinator.device_path().copy_gathered(
        *operation,
        i,
        reinterpret_cast<void*>(outputs[i]),  // NOLINT(performance-no-int-to-ptr)
        stream);
  }
  coordinator.release(handle);
  return request.kind == OpKind::kAlltoall
             ? py::tuple(py::cast(operation->buffers.front().first_extents))
             : py::tuple();
}

std::int64_t take_join(Handle handle) {
  return Finished(handle, OpKind::kJoin, "take_join").operation().value;
}

std::int64_t take_source(Handle handle) {
  return Finished(handle, OpKind::kReceive, "take_source").operation().value;
}

PyMethodDef hot_path[] = {
    {"wait",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_wait)),
     METH_FASTCALL,
     nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_results(py::module_& module) {
  PyModule_AddFunctions(module.ptr(), hot_path);
  module.def("poll", [](Handle handle) {
    return Runtime::instance().session()->coordinator().poll(handle);
  });
  module.def("times", &times);
  module.def("take_output", &take_output);
  module.def("take_outputs", &take_outputs);
  module.def("take_alltoall", &take_alltoall);
  module.def("output_shapes", &output_shapes);
  module.def("take_into", &take_into);
  module.def("take_join", &take_join);
  module.def("take_source", &take_source);
}

}  // namespace aiacc
