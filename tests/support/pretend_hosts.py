"""Imported first, divides the ranks of mpirun into hosts of PRETEND_HOSTS ranks (1).

With NO_FABRIC in the environment they have none that would make MPI worth while.
"""

import os

_here = int(os.environ.get("PRETEND_HOSTS", "1"))
for _flavour in (
    ("PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
):
    if _flavour[0] in os.environ:
        os.environ[_flavour[1]] = str(int(os.environ[_flavour[0]]) % _here)
        os.environ[_flavour[2]] = str(_here)

from aiacc import mpi_library  # noqa: E402 - it reads those variables

mpi_library.fabrics = lambda: [] if "NO_FABRIC" in os.environ else ["pretended"]
