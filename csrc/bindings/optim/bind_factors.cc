#include <cstdint>
#include <tuple>
#include <vector>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/optim/optim_device.h"
#include "csrc/bindings/python_arguments.h"

namespace py = pybind11;

namespace aiacc {
namespace {

/// A FactorStack: addresses, dimension, number, strides, scale, and its weight in the mean.
using FactorAddresses = std::tuple<std::uintptr_t,
                                   std::uintptr_t,
                                   std::uint64_t,
                                   std::uint64_t,
                                   std::uint64_t,
                                   std::uint64_t,
                                   double,
                                   double>;

std::vector<FactorStack> stacks_of(const std::vector<FactorAddresses>& given) {
  std::vector<FactorStack> stacks;
  stacks.reserve(given.size());
  for (const auto& [matrices, packed, dim, number, row, matrix, scale, enters] : given) {
    check_address(matrices, dim * number, "factor");
    check_address(packed, dim * number, "packed factor");
    stacks.push_back({reinterpret_cast<void*>(matrices),
                      reinterpret_cast<void*>(packed),
                      dim,
                      number,
                      row,
                      matrix,
                      scale,
                      enters});
  }
  return stacks;
}

void bind(py::module_& module, const char* name, FactorWork work) {
  module.def(
      name,
      [work](const std::vector<FactorAddresses>& factors,
             bool float64,
             int device,
             std::uintptr_t stream) {
        const py::gil_scoped_release release;
        with_optim_device(device, [&](OptimDevice& on) {
          on.factors.run(reinterpret_cast<CudaStream>(stream),
                         work,
                         float64 ? DataType::kFloat64 : DataType::kFloat32,
                         stacks_of(factors));
        });
      },
      py::arg("factors"),
      py::kw_only(),
      py::arg("float64"),
      py::arg("device"),
      py::arg("stream"));
}

}  // namespace

void bind_factors(py::module_& module) {
  bind(module, "pack_factors_on_gpu", FactorWork::kPack);
  bind(module, "unpack_factors_on_gpu", FactorWork::kUnpack);
  bind(module, "average_factors_on_gpu", FactorWork::kAverage);
}

}  // namespace aiacc
