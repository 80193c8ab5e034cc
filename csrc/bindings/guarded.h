#pragma once

#include <exception>

#include <pybind11/pybind11.h>

#include "csrc/base/error.h"
#include "csrc/bindings/bindings.h"

namespace aiacc {

/// What pybind11's dispatcher does for other functions: no C++ exception reaches Python.
template <class Body>
PyObject* guarded(Body body) noexcept {
  try {
    return body();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const Error& error) {
    set_python_error(error);
  } catch (const pybind11::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

/// Lets Python see a Ctrl-C that came during a wait without the GIL.
inline void check_signals() {
  const pybind11::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    throw pybind11::error_already_set();
  }
}

}  // namespace aiacc
