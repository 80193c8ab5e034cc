"""Rows of the table that all ranks get at start-up."""

import dataclasses

from aiacc.bootstrap.job_plan import Contribution
from aiacc.bootstrap.reach import Candidate, Presence

NO_MPI = "no MPI library; pip install mpich"
WITH_MPI = {"local": "only for size 1"} | dict.fromkeys(
    ("shm", "tcp", "hierarchical", "mpi", "hierarchical-mpi"), ""
)
#: Reasons against each engine of a rank without MPI.
ENGINES = WITH_MPI | {"mpi": NO_MPI, "hierarchical-mpi": NO_MPI}


def row(number, size, **changes):
    standard = Contribution(
        rank=number,
        size=size,
        host="a/boot",
        presence=Presence("stack a", 5000 + number, [Candidate("eth0", "10.0.0.1", 24)]),
        engine="auto",
        gpu_engine="auto",
        engines=ENGINES,
        lanes=0,
        unit_bytes=2097152,
        version="0.1.0",
        launcher="rendezvous",
        generation=0,
        token=bytes([number % 256] * 16),
    )
    return dataclasses.replace(standard, **changes)


def job(hosts, changes=None, **common):
    """Rows of ranks on these hosts, one letter for each rank; with ``changes`` by rank."""
    of_rank = changes or {}
    return [
        row(rank, **{"size": len(hosts), "host": f"{host}/boot"} | common | of_rank.get(rank, {}))
        for rank, host in enumerate(hosts)
    ]
