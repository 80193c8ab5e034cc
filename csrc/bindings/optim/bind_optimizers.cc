#include <array>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/optim/optim_device.h"
#include "csrc/bindings/python_arguments.h"
#include "csrc/kernels/gpu/optim/tensor_chunks.h"
#include "csrc/kernels/lars.h"

namespace py = pybind11;

namespace aiacc {
namespace {

/// Addresses of weights, gradient and momentum (0: none), and the number of elements.
using LarsAddresses = std::array<std::uintptr_t, 4>;

std::vector<LarsTensor> tensors_of(const std::vector<LarsAddresses>& given) {
  std::vector<LarsTensor> tensors;
  tensors.reserve(given.size());
  for (const auto& [weights, gradient, momentum, count] : given) {
    check_address(weights, count, "parameter");
    check_address(gradient, count, "gradient");
    tensors.push_back({reinterpret_cast<float*>(weights),
                       reinterpret_cast<const float*>(gradient),
                       reinterpret_cast<float*>(momentum),
                       count});
  }
  return tensors;
}

/// Addresses of weights, gradient and means, and of the number of the step (0: it follows), and the
/// number of elements.
using LambAddresses = std::tuple<std::uintptr_t,
                                 std::uintptr_t,
                                 std::uintptr_t,
                                 std::uintptr_t,
                                 std::uintptr_t,
                                 double,
                                 std::uint64_t>;

std::vector<LambTensor> tensors_of(const std::vector<LambAddresses>& given) {
  std::vector<LambTensor> tensors;
  tensors.reserve(given.size());
  for (const auto& [weights, gradient, mean, square, steps_on_device, steps, count] : given) {
    for (const auto& [address, what] : {std::pair(weights, "parameter"),
                                        {gradient, "gradient"},
                                        {mean, "exp_avg"},
                                        {square, "exp_avg_sq"}}) {
      check_address(address, count, what);
    }
    tensors.push_back({reinterpret_cast<float*>(weights),
                       reinterpret_cast<const float*>(gradient),
                       reinterpret_cast<float*>(mean),
                       reinterpret_cast<float*>(square),
                       reinterpret_cast<const float*>(steps_on_device),
                       steps,
                       count});
  }
  return tensors;
}

void bind_lamb(py::module_& module) {
  py::class_<LambOptions>(module, "LambOptions")
      .def(py::init([](double lr,
                       double beta1,
                       double beta2,
                       double eps,
                       double weight_decay,
                       double least_ratio,
                       double largest_ratio,
                       bool bias_correction,
                       bool adapt) {
             return LambOptions{lr,
                                beta1,
                                beta2,
                                eps,
                                weight_decay,
                                least_ratio,
                                largest_ratio,
                                bias_correction,
                                adapt};
           }),
           py::kw_only(),
           py::arg("lr"),
           py::arg("beta1"),
           py::arg("beta2"),
           py::arg("eps"),
           py::arg("weight_decay"),
           py::arg("least_ratio"),
           py::arg("largest_ratio"),
           py::arg("bias_correction"),
           py::arg("adapt"));
  module.def(
      "lamb_step_on_gpu",
      [](const std::vector<LambAddresses>& tensors,
         const LambOptions& options,
         int device,
         std::uintptr_t stream,
         std::uintptr_t lr,
         std::uintptr_t clip,
         std::uintptr_t workspace) {
        const py::gil_scoped_release release;
        with_optim_device(device, [&](OptimDevice& on) {
          on.lamb.step(reinterpret_cast<CudaStream>(stream),
                       tensors_of(tensors),
                       options,
                       {reinterpret_cast<const float*>(lr),
                        reinterpret_cast<const float*>(clip),
                        reinterpret_cast<void*>(workspace)});
        });
      },
      py::arg("tensors"),
      py::arg("options"),
      py::kw_only(),
      py::arg("device"),
      py::arg("stream"),
      py::arg("lr"),
      py::arg("clip"),
      py::arg("workspace"));
}

void bind_lars(py::module_& module) {
  py::class_<LarsOptions>(module, "LarsOptions")
      .def(py::init([](double lr,
                       double momentum,
                       double dampening,
                       double weight_decay,
                       double trust_coefficient,
                       double eps,
                       double least_ratio,
                       double largest_ratio,
                       bool nesterov,
                       bool larc,
                       bool adapt,
                       bool first) {
             return LarsOptions{lr,
                                momentum,
                                dampening,
                                weight_decay,
                                trust_coefficient,
                                eps,
                                least_ratio,
                                largest_ratio,
                                nesterov,
                                larc,
                                adapt,
                                first};
           }),
           py::kw_only(),
           py::arg("lr"),
           py::arg("momentum"),
           py::arg("dampening"),
           py::arg("weight_decay"),
           py::arg("trust_coefficient"),
           py::arg("eps"),
           py::arg("least_ratio"),
           py::arg("largest_ratio"),
           py::arg("nesterov"),
           py::arg("larc"),
           py::arg("adapt"),
           py::arg("first"));
  module.def(
      "lars_step",
      [](const std::vector<LarsAddresses>& tensors, const LarsOptions& options, unsigned threads) {
        const py::gil_scoped_release release;
        lars_steps(tensors_of(tensors), options, threads);
      },
      py::arg("tensors"),
      py::arg("options"),
      py::arg("threads"));
  module.def(
      "lars_step_on_gpu",
      [](const std::vector<LarsAddresses>& tensors,
         const LarsOptions& options,
         int device,
         std::uintptr_t stream,
         std::uintptr_t lr,
         std::uintptr_t workspace) {
        const py::gil_scoped_release release;
        with_optim_device(device, [&](OptimDevice& on) {
          on.lars.step(reinterpret_cast<CudaStream>(stream),
                       tensors_of(tensors),
                       options,
                       reinterpret_cast<const float*>(lr),
                       reinterpret_cast<void*>(workspace));
        });
      },
      py::arg("tensors"),
      py::arg("options"),
      py::kw_only(),
      py::arg("device"),
      py::arg("stream"),
      py::arg("lr"),
      py::arg("workspace"));
}

}  // namespace

void bind_optimizers(py::module_& module) {
  bind_lamb(module);
  bind_lars(module);
  module.def("optim_workspace_bytes", &optim_workspace_bytes, py::arg("tensors"));
  module.def(
      "optim_problem",
      [](int device) {
        const py::gil_scoped_release release;
        return optim_problem(device);
      },
      py::arg("device"));
}

}  // namespace aiacc
