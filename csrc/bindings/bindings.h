#pragma once

#include <pybind11/pybind11.h>

namespace aiacc {

class Error;

/// The Python exception that stands for `error`. Needs the GIL.
void set_python_error(const Error& error);

/// One file per topic; each adds its part to the module.
void bind_errors(pybind11::module_& module);
void bind_runtime(pybind11::module_& module);
void bind_submission(pybind11::module_& module);
void bind_in_place(pybind11::module_& module);
void bind_process_sets(pybind11::module_& module);
void bind_messages(pybind11::module_& module);
void bind_results(pybind11::module_& module);
void bind_engines(pybind11::module_& module);
void bind_factors(pybind11::module_& module);
void bind_optimizers(pybind11::module_& module);
void bind_config(pybind11::module_& module);

}  // namespace aiacc
