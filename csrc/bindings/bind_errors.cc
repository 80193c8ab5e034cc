#include <cstring>

#include <pybind11/pybind11.h>

#include "csrc/base/error.h"
#include "csrc/bindings/bindings.h"

namespace py = pybind11;

namespace aiacc {
namespace {

const char* class_of(Code code) {
  switch (code) {
    case Code::kMismatch:
      return "MismatchError";
    case Code::kTimeout:
      return "CollectiveTimeoutError";
    case Code::kPeerLost:
      return "PeerLostError";
    case Code::kEngine:
      return "EngineError";
    case Code::kShutdown:
      return "ShutdownError";
    case Code::kOk:
    case Code::kInvalidArgument:
    case Code::kUnsupported:
    case Code::kInternal:
    case Code::kNotFinite:
      return "CollectiveError";
  }
  return "CollectiveError";
}

/// Names that another front-end gave need not be UTF-8.
void set_text(PyObject* type, const char* what) {
  const auto size = static_cast<Py_ssize_t>(std::strlen(what));
  const auto text = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(what, size, "replace"));
  if (text) {
    PyErr_SetObject(type, text.ptr());
  }
}

}  // namespace

void set_python_error(const Error& error) {
  if (error.code() == Code::kInvalidArgument || error.code() == Code::kUnsupported) {
    const bool is_wrong = error.code() == Code::kInvalidArgument;
    set_text(is_wrong ? PyExc_ValueError : PyExc_NotImplementedError, error.what());
    return;
  }
  const py::object type = py::module_::import("aiacc.exceptions").attr(class_of(error.code()));
  set_text(type.ptr(), error.what());
}

void bind_errors(py::module_& module) {
  static_cast<void>(module);
  py::register_local_exception_translator(
      [](std::exception_ptr pointer) {  // NOLINT(performance-unnecessary-value-param)
        try {
          if (pointer) {
            std::rethrow_exception(pointer);
          }
        } catch (const Error& error) {
          set_python_error(error);
        }
      });
}

}  // namespace aiacc
