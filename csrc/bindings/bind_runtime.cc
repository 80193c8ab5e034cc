#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/base/build_info.h"
#include "csrc/base/descriptors.h"
#include "csrc/base/interfaces.h"
#include "csrc/base/log.h"
#include "csrc/base/thread.h"
#include "csrc/bindings/bindings.h"
#include "csrc/core/runtime.h"

namespace py = pybind11;

namespace aiacc {
namespace {

/// A Listener that Python may close before the core takes it over.
struct PyListener {
  explicit PyListener(const std::vector<std::string>& only)
      : listener(std::make_shared<Listener>(only)) {}
  int port() const {
    if (listener == nullptr) {
      throw Error(Code::kInvalidArgument, "[core] this listener is closed");
    }
    return listener->port();
  }
  std::shared_ptr<Listener> listener;
};

/// Also where there is no runtime, or that of a parent: nothing to be marked.
void mark_step() {
  if (Runtime::instance().initialized()) {
    const auto session = Runtime::instance().session();
    if (!session->inherited()) {
      session->timeline().mark_step();
    }
  }
}

JobToken token_from(const std::string& bytes) {
  JobToken token{};
  if (bytes.size() != token.size()) {
    throw Error(Code::kInvalidArgument,
                "[core] a job token of " + std::to_string(bytes.size()) + " bytes (expected " +
                    std::to_string(token.size()) + ")");
  }
  std::copy(bytes.begin(), bytes.end(), token.begin());
  return token;
}

void init(int rank,
          int size,
          int local_rank,
          int local_size,
          int cross_rank,
          int cross_size,
          std::string engine,
          std::string gpu_engine,
          int lanes,
          std::uint64_t unit_bytes,
          const py::bytes& token,
          std::uint32_t epoch,
          std::vector<std::string> addresses,
          std::vector<int> host_of,
          const PyListener* listener,
          int gpu_lanes,
          std::pair<int, int> gpu_capability,
          bool nccl_in_use) {
  SessionOptions options;
  options.topology = {rank, size, local_rank, local_size, cross_rank, cross_size};
  options.engine = std::move(engine);
  options.gpu_engine = std::move(gpu_engine);
  options.context.lanes = lanes;
  options.unit_bytes = unit_bytes;
  options.token = token_from(token);
  options.epoch = epoch;
  options.addresses = std::move(addresses);
  options.context.host_of = std::move(host_of);
  options.gpu_lanes = gpu_lanes;
  std::tie(options.context.gpu_capability, options.context.gpu_capability_rank) = gpu_capability;
  options.context.nccl_in_use = nccl_in_use;
  std::shared_ptr<Listener> owned = listener != nullptr ? listener->listener : nullptr;
  const py::gil_scoped_release release;
  Runtime::instance().init(std::move(options), std::move(owned));
}

py::dict stats() {
  const auto session = Runtime::instance().session();
  const CoordinatorStats counters = session->coordinator().stats();
  py::dict result;
  result["rounds"] = session->plane().rounds();
  result["control_bytes"] = session->plane().bytes_sent();
  result["tensors"] = counters.tensors;
  result["units"] = counters.units;
  result["data_bytes"] = counters.data_bytes;
  result["wait_ns"] = counters.wait_ns;
  result["lanes"] = counters.lanes;
  result["unit_bytes"] = counters.unit_bytes;
  return result;
}

}  // namespace

void bind_runtime(py::module_& module) {
  const auto info = build_info();
  for (const auto& [key, value] : info) {
    if (key == "version") {
      module.attr("__version__") = value;
    }
  }
  module.def("build_info", [] {
    py::dict result;
    for (const auto& [key, value] : build_info()) {
      result[py::str(key)] = value;
    }
    return result;
  });
  py::class_<PyListener>(module, "Listener")
      .def(py::init<const std::vector<std::string>&>(),
           py::arg("addresses") = std::vector<std::string>{})
      .def_property_readonly("port", &PyListener::port)
      .def("close", [](PyListener& self) { self.listener.reset(); });
  py::class_<ThreadReserve>(module, "ThreadReserve")
      .def(py::init<int>(), py::arg("count"), py::call_guard<py::gil_scoped_release>())
      .def("release", &ThreadReserve::release, py::call_guard<py::gil_scoped_release>());
  module.def("interface_addresses", [] {
    py::list result;
    for (const InterfaceAddress& found : interface_addresses()) {
      result.append(
          py::make_tuple(found.interface, found.address, found.prefix_bits, found.running));
    }
    return result;
  });
  module.def("init",
             &init,
             py::kw_only(),
             py::arg("rank"),
             py::arg("size"),
             py::arg("local_rank"),
             py::arg("local_size"),
             py::arg("cross_rank"),
             py::arg("cross_size"),
             py::arg("engine"),
             py::arg("gpu_engine") = "staged",
             py::arg("lanes"),
             py::arg("unit_bytes"),
             py::arg("token"),
             py::arg("epoch"),
             py::arg("addresses"),
             py::arg("host_of"),
             py::arg("listener").none(true),
             py::arg("gpu_lanes") = 1,
             py::arg("gpu_capability") = std::make_pair(0, 0),
             py::arg("nccl_in_use") = false);
  module.def(
      "shutdown",
      [](const std::string& how) { Runtime::instance().shutdown(how); },
      py::arg("how") = "",
      py::call_guard<py::gil_scoped_release>());
  module.def("raise_descriptor_limit", &raise_descriptor_limit);
  module.def("exhaustion_remedy", &exhaustion_remedy, py::arg("error_number"));
  module.def("is_initialized", [] { return Runtime::instance().initialized(); });
  module.def("rank", [] { return Runtime::instance().session()->topology().rank; });
  module.def("size", [] { return Runtime::instance().session()->topology().size; });
  module.def("local_rank", [] { return Runtime::instance().session()->topology().local_rank; });
  module.def("local_size", [] { return Runtime::instance().session()->topology().local_size; });
  module.def("cross_rank", [] { return Runtime::instance().session()->topology().cross_rank; });
  module.def("cross_size", [] { return Runtime::instance().session()->topology().cross_size; });
  module.def("engine", [] { return std::string(Runtime::instance().session()->engine().name()); });
  module.def("gpu_engine", [] { return Runtime::instance().session()->options().gpu_engine; });
  module.def("lanes", [] { return Runtime::instance().session()->engine().lanes(); });
  module.def("stats", &stats);
  module.def(
      "start_timeline",
      [](const std::string& path, bool mark_cycles) {
        try {
          Runtime::instance().session()->timeline().start(path, mark_cycles);
        } catch (const Error& error) {
          if (error.code() != Code::kEngine) {
            throw;
          }
          // The other ranks have theirs, and would lose this one.
          AIACC_LOG(kWarning) << error.what() << "; the job goes on without this timeline";
        }
      },
      py::arg("path"),
      py::arg("mark_cycles") = false);
  module.def("mark_step", &mark_step);
  module.def(
      "stop_timeline",
      [] { Runtime::instance().session()->timeline().stop(); },
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "propose_parameters",
      [](std::uint64_t unit_bytes, std::uint32_t lanes, const std::string& gpu_algorithm) {
        const auto session = Runtime::instance().session();
        Parameters parameters = session->parameters();
        parameters.unit_bytes = unit_bytes;
        parameters.lanes = lanes;
        if (!gpu_algorithm.empty()) {
          parameters.algorithm = algorithm_from(gpu_algorithm);
        }
        session->coordinator().propose(parameters);
      },
      py::arg("unit_bytes"),
      py::arg("lanes"),
      py::arg("gpu_algorithm") = "",
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace aiacc
