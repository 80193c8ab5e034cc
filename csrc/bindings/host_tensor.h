#pragma once

#include <cstdint>

#include <pybind11/pybind11.h>

#include "csrc/base/dtype.h"

namespace aiacc {

/// A contiguous tensor in host memory, as a tensor of Python describes itself.
struct HostTensor {
  void* address = nullptr;
  const std::int64_t* shape = nullptr;  ///< the tensor's own memory
  std::int32_t dimensions = 0;
  DataType dtype = DataType::kFloat32;
};

/// What is below it may be no address: a view into memory that was freed has its offset there. What
/// position-independent programs allocate is above it.
inline constexpr std::uintptr_t kLowestAddress = std::uintptr_t{1} << 36;

/// Makes `read_host_tensor` know tensors of these types, and no others. `exchange`: the capsule
/// with DLPack's C functions that all of them have; None: they have none, and are not read.
/// `has_other_values`: what says of a tensor whether it is a view that gives its memory other
/// values, such as their negatives; `bytes_have_other_values` says so of integers of 8 bits, which
/// DLPack calls narrower ones, too. `lacks_memory`: what says of one at an address below
/// kLowestAddress whether it has none. Needs the GIL.
void read_tensors_of(const pybind11::tuple& types,
                     const pybind11::object& exchange,
                     const pybind11::object& has_other_values,
                     const pybind11::object& bytes_have_other_values,
                     const pybind11::object& lacks_memory);

/// Reads a tensor by the C functions that its type offers (DLPack's exchange API), which takes a
/// third of the time that its attributes take. False, without a Python error, unless it is a
/// contiguous tensor in host memory of a known type, and of a dtype that the core has; why it is
/// not, its attributes say. Needs the GIL.
bool read_host_tensor(PyObject* object, HostTensor& tensor);

}  // namespace aiacc
