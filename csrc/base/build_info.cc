#include "csrc/base/build_info.h"

#include "build_info_values.h"

namespace aiacc {

std::vector<std::pair<std::string, std::string>> build_info() {
  return {
      {"version", AIACC_BUILD_VERSION},
      {"compiler", AIACC_BUILD_COMPILER},
      {"build_type", AIACC_BUILD_TYPE},
      {"cuda", AIACC_BUILD_CUDA},
      {"cuda_architectures", AIACC_BUILD_CUDA_ARCHITECTURES},
      {"mpi_mpich", AIACC_BUILD_MPI_MPICH},
      {"mpi_openmpi", AIACC_BUILD_MPI_OPENMPI},
      {"mpi_reason", AIACC_BUILD_MPI_REASON},
  };
}

}  // namespace aiacc
