#pragma once

#include <mpi.h>

#include "csrc/base/dtype.h"
#include "csrc/engines/mpi/mpi_plugin.h"

/// Part of the plug-in: MPI's names for our element types and reductions.
namespace aiacc {

/// What the operations that MPI lacks are made of. To be set before any reduction.
void set_reduce_function(MpiReduceFunction reduce);

/// Once, after MPI_Init and before the functions below. Returns an MPI error code.
int create_mpi_types();

MPI_Datatype mpi_type(DataType dtype);

/// MPI's own sums and products of standard types are used as they are: MPI picks better algorithms
/// for operations that it knows. Minimum and maximum are ours because of NaN.
MPI_Op mpi_op(DataType dtype, ReduceOp op);

}  // namespace aiacc
