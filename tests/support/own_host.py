"""Imported before aiacc, makes a rank of mpirun believe that it is alone on its host."""

import os

for _rank, _size in (
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
):
    os.environ.update({_rank: "0", _size: "1"})
