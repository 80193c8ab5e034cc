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

Handle submit(int kind,
              const std::string& name,
              std::uintptr_t input,
              std::uintptr_t output,
              const py::tuple& shape,
              int dtype,
              int op,
              int root,
              double prescale,
              double postscale,
              std::uint32_t process_set) {
  const auto session = Runtime::instance().session();
  Coordinator& coordinator = session->coordinator();
  std::shared_ptr<Operation> operation = coordinator.acquire();
  Request& request = operation->request;
  request.kind = kind_from(kind);
  request.name = name;
  request.dtype = dtype_from(dtype);
  request.op = reduce_op_from(op);
  request.root = root;
  request.device = -1;
  request.process_set = process_set;
  request.prescale = prescale;
  request.postscale = postscale;
  request.shape.clear();
  for (const py::handle extent : shape) {
    const long long value = PyLong_AsLongLong(extent.ptr());
    if (value < 0) {
      throw py::error_already_set();
    }
    request.shape.push_back(value);
  }
  check(request, session->placement().size);
  operation->input = reinterpret_cast<const void*>(input);
  operation->output = reinterpret_cast<void*>(output);
  return coordinator.submit(std::move(operation));
}

/// Lets Python see a Ctrl-C that came during a wait without the GIL.
void check_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    throw py::error_already_set();
  }
}

void wait(Handle handle) {
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

}  // namespace

void bind_operations(py::module_& module) {
  module.attr("ALLREDUCE") = static_cast<int>(OpKind::kAllreduce);
  module.attr("ALLGATHER") = static_cast<int>(OpKind::kAllgather);
  module.attr("BROADCAST") = static_cast<int>(OpKind::kBroadcast);
  module.attr("BARRIER") = static_cast<int>(OpKind::kBarrier);
  module.def("submit",
             &submit,
             py::arg("kind"),
             py::arg("name"),
             py::arg("input"),
             py::arg("output"),
             py::arg("shape"),
             py::arg("dtype"),
             py::arg("op") = static_cast<int>(ReduceOp::kSum),
             py::arg("root") = 0,
             py::arg("prescale") = 1.0,
             py::arg("postscale") = 1.0,
             py::arg("process_set") = 0);
  module.def("poll", [](Handle handle) {
    return Runtime::instance().session()->coordinator().poll(handle);
  });
  module.def("wait", &wait);
  module.def("take_output", &take_output);
  module.def("flush", [] { Runtime::instance().session()->coordinator().flush(); });
}

}  // namespace aiacc
