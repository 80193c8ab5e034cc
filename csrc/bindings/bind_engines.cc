#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/engines/mpi/mpi_loader.h"
#include "csrc/engines/nccl/nccl_engine.h"
#include "csrc/engines/nccl/nccl_gpus.h"
#include "csrc/engines/registry.h"

namespace py = pybind11;

namespace aiacc {
void bind_engines(py::module_& module) {
  module.def("engines", [] {
    py::list rows;
    const auto add = [&](const auto& entries) {
      for (const auto& entry : entries) {
        const Viability viability = entry.viability();
        rows.append(py::make_tuple(entry.name, viability.viable, viability.detail));
      }
    };
    add(engine_registry());
    add(device_engine_registry());
    return rows;
  });
  module.def("nccl_lanes_problem", &nccl_lanes_problem, py::arg("lanes"), py::arg("in_use"));
  module.def("nccl_gpus", [] {
    const NcclGpus gpus = nccl_gpus();
    return py::make_tuple(gpus.visible, gpus.host, gpus.may_share, gpus.capability);
  });
  module.def("load_mpi", &load_mpi, py::arg("plugin"), py::arg("library"));
  module.def(
      "mpi_initialize",
      [](int network_lanes, double timeout_s) {
        MpiIdentity identity;
        {
          const py::gil_scoped_release release;
          identity = mpi_initialize(network_lanes, timeout_s);
        }
        return py::make_tuple(identity.rank, identity.size, identity.version);
      },
      py::arg("network_lanes") = 0,
      py::arg("timeout_s") = 30.0);
  module.def(
      "mpi_reserve",
      [](int lanes) {
        const py::gil_scoped_release release;
        mpi_reserve(lanes);
      },
      py::arg("lanes"));
  module.def("mpi_leave_unfinished", &mpi_leave_unfinished);
  module.def("mpi_all_gather", [](const py::bytes& payload) {
    const std::string mine = payload;
    std::vector<std::string> all;
    {
      const py::gil_scoped_release release;
      all = mpi_all_gather(mine);
    }
    py::list result;
    for (const std::string& one : all) {
      result.append(py::bytes(one));
    }
    return result;
  });
}

}  // namespace aiacc
