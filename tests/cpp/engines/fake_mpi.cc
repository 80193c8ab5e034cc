// Stands for an MPI library (Open MPI, by what it says) and for a plug-in from another version of
// aiacc. Used by mpi_loader_test, which needs no MPI.

#include <cstdio>

#include "csrc/engines/mpi/mpi_plugin.h"

extern "C" __attribute__((visibility("default"))) int MPI_Get_library_version(char* text,
                                                                              int* length) {
  *length = std::sprintf(text, "Open MPI v5.0.8, package: a fake\nfor tests");
  return 0;
}

extern "C" __attribute__((visibility("default"))) const char fake_mark[] =
    "aiacc-mpi-flavour=openmpi";

extern "C" __attribute__((visibility("default"))) const aiacc::MpiPlugin* aiacc_mpi_plugin(
    int, aiacc::MpiReduceFunction) {
  return nullptr;
}
