#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/guarded.h"
#include "csrc/core/runtime.h"

namespace py = pybind11;

namespace aiacc {

void bind_process_sets(py::module_& module) {
  module.def("add_process_set", [](std::vector<int> ranks) {
    const auto session = Runtime::instance().session();
    const py::gil_scoped_release release;
    return session->coordinator().add_process_set(std::move(ranks), check_signals);
  });
  module.def("remove_process_set", [](std::uint32_t id) {
    const auto session = Runtime::instance().session();
    const py::gil_scoped_release release;
    return session->coordinator().remove_process_set(id, check_signals);
  });
  module.def("form_process_set", [](const std::string& name, std::vector<int> ranks) {
    const auto session = Runtime::instance().session();
    const py::gil_scoped_release release;
    return session->coordinator().form_process_set(name, std::move(ranks), check_signals);
  });
  module.def("leave_process_set", [](std::uint32_t id) {
    Runtime::instance().session()->coordinator().leave_process_set(id);
  });
  module.def("process_set_ranks", [](std::uint32_t id) {
    const auto communicator = Runtime::instance().session()->coordinator().communicators().find(id);
    if (communicator == nullptr) {
      throw Error(Code::kInvalidArgument,
                  "[process set] process set " + std::to_string(id) +
                      " is not registered (expected one that add_process_set returned)");
    }
    return py::tuple(py::cast(communicator->ranks));
  });
  module.def("process_set_ids", [] {
    return py::tuple(py::cast(Runtime::instance().session()->coordinator().communicators().ids()));
  });
}

}  // namespace aiacc
