#include <map>
#include <optional>
#include <string>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/base/env.h"
#include "csrc/base/log.h"
#include "csrc/bindings/bindings.h"

namespace py = pybind11;

namespace aiacc {

void bind_config(py::module_& module) {
  module.def("env_table", [] {
    py::list rows;
    for (const VariableText& row : environment_table()) {
      rows.append(py::make_tuple(row.name, row.alias, row.type, row.default_value, row.meaning));
    }
    return rows;
  });
  module.def(
      "log_info", [](const std::string& text) { AIACC_LOG(kInfo) << text; }, py::arg("text"));
  module.def(
      "configure_log",
      [](int rank) { configure_log(log_level_from(Config::from_environment().log_level), rank); },
      py::arg("rank"));
  module.def(
      "log_warning", [](const std::string& text) { AIACC_LOG(kWarning) << text; }, py::arg("text"));
  module.def(
      "config",
      [](const std::optional<std::map<std::string, std::string>>& variables) {
        const auto given = [&](const char* name) -> const char* {
          const auto found = variables->find(name);
          return found == variables->end() ? nullptr : found->second.c_str();
        };
        const Config config = variables ? Config::from(given) : Config::from_environment();
        py::dict result;
        for (const auto& [name, value] : values_of(config)) {
          result[py::str(name)] = value;
        }
        return result;
      },
      py::arg("variables") = py::none());
}

}  // namespace aiacc
