#pragma once

#include <cstddef>
#include <string>

#include <pybind11/pybind11.h>

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
