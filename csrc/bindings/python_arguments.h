#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <pybind11/pybind11.h>

#include "csrc/base/error.h"

namespace aiacc {

// For functions that do without pybind11's argument loader: it costs as much as a submission.
// Arguments of another type throw pybind11::error_already_set.

inline long long integer(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    throw pybind11::error_already_set();
  }
  return value;
}

inline void* address(PyObject* object) {
  void* value = PyLong_AsVoidPtr(object);
  if (value == nullptr && PyErr_Occurred() != nullptr) {
    throw pybind11::error_already_set();
  }
  return value;
}

/// Throws Error(kInvalidArgument) for `what` at address 0 that has elements.
inline void check_address(std::uintptr_t address, std::uint64_t elements, const char* what) {
  if (address == 0 && elements > 0) {
    throw Error(Code::kInvalidArgument,
                std::string("[kernels] ") + what + " of " + std::to_string(elements) +
                    " elements at address 0 (expected a tensor that has memory of its own)");
  }
}

inline double number(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    throw pybind11::error_already_set();
  }
  return value;
}

inline void append_text(std::string& target, PyObject* object) {
  Py_ssize_t bytes = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &bytes);
  if (text == nullptr) {
    throw pybind11::error_already_set();
  }
  target.append(text, static_cast<std::size_t>(bytes));
}

/// "<verb>.<name>", or nothing if the name is None or empty.
inline void assign_op_name(std::string& target, const std::string& verb, PyObject* name) {
  target.clear();
  if (name != Py_None && PyObject_IsTrue(name) != 0) {
    target = verb;
    target += '.';
    append_text(target, name);
  }
}

inline PyObject* none() {
  Py_INCREF(Py_None);
  return Py_None;
}

}  // namespace aiacc
