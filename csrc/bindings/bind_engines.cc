#include <cstdint>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/python_arguments.h"
#include "csrc/bindings/request_arguments.h"
#include "csrc/engines/coding_speed.h"
#include "csrc/engines/mpi/mpi_loader.h"
#include "csrc/engines/nccl/nccl_engine.h"
#include "csrc/engines/nccl/nccl_gpus.h"
#include "csrc/engines/registry.h"
#include "csrc/kernels/select.h"

namespace py = pybind11;

namespace aiacc {
namespace {

double timed_coding(long long wire, std::size_t elements) {
  Request request;
  assign_wire(request, wire);
  if (!is_coded(request.wire)) {
    throw Error(Code::kInvalidArgument,
                std::string("[engines] coding_seconds of wire format ") + name_of(request.wire) +
                    " (expected one that is coded)");
  }
  const std::string problem = coding_problem(request.wire, request.wire_detail);
  if (!problem.empty()) {
    throw Error(Code::kInvalidArgument, "[engines] " + problem);
  }
  return coding_seconds({request.wire, request.wire_detail}, elements);
}

/// False: a value is not finite.
bool select(std::uintptr_t pairs, std::uintptr_t in, std::size_t count, std::size_t k, int mode) {
  if (k > count || count > UINT32_MAX || mode < 0 || mode > 2) {
    throw Error(Code::kInvalidArgument,
                "[kernels] select of " + std::to_string(k) + " of " + std::to_string(count) +
                    " elements in mode " + std::to_string(mode) +
                    " (expected k of no more than 2^32 - 1, and mode 0 to 2)");
  }
  check_address(pairs, k, "output");
  check_address(in, count, "input");
  ThresholdTrack track;
  SelectScratch scratch;
  return select_largest(reinterpret_cast<void*>(pairs),
                        reinterpret_cast<const float*>(in),
                        nullptr,
                        count,
                        k,
                        1.0F,
                        static_cast<SelectMode>(mode),
                        0,
                        track,
                        scratch)
      .finite;
}

}  // namespace

void bind_engines(py::module_& module) {
  module.def(
      "coding_seconds",
      [](long long wire, std::size_t elements) {
        const py::gil_scoped_release release;
        return timed_coding(wire, elements);
      },
      py::arg("wire"),
      py::arg("elements"));
  module.def(
      "select_largest",
      [](std::uintptr_t pairs, std::uintptr_t in, std::size_t count, std::size_t k, int mode) {
        const py::gil_scoped_release release;
        return select(pairs, in, count, k, mode);
      },
      py::arg("pairs"),
      py::arg("input"),
      py::arg("count"),
      py::arg("k"),
      py::arg("mode"));
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
