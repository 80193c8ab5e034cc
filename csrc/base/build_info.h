#pragma once

#include <string>
#include <utility>
#include <vector>

namespace aiacc {

/// What this library was built with and from, decided by CMake: version, compiler, build_type,
/// cuda (which kernels there are, or why there are none), cuda_architectures ("75;80;...", empty
/// without kernels), mpi_mpich and mpi_openmpi (version of the headers and library that the plug-in
/// for MPICH, or for Open MPI, was built with, as "4.1.4 (libmpi.so.40)"; empty without one) and
/// mpi_reason (why there is no plug-in at all).
std::vector<std::pair<std::string, std::string>> build_info();

}  // namespace aiacc
