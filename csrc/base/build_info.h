#pragma once

#include <string>
#include <utility>
#include <vector>

namespace aiacc {

/// What this library was built with and from, decided by CMake: version, compiler, build_type,
/// cuda (which kernels there are, or why there are none), cuda_architectures ("75;80;...", empty
/// without kernels), mpi_flavour ("mpich", "openmpi", "unknown" or "none"), mpi_version, mpi_soname
/// (the library that the plug-in needs, such as "libmpi.so.12") and mpi_reason (why there is no
/// plug-in).
std::vector<std::pair<std::string, std::string>> build_info();

}  // namespace aiacc
