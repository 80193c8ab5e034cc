"""Engine `mpi` on a host with little shared memory, such as a container with its 64 MiB."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support.needed import missing
from tests.support.programs import run_program
from tests.support.ranks import mpirun, rank_environment

pytestmark = [pytest.mark.mpi, pytest.mark.alone]

PROGRAM = """
import tests.support.pretend_hosts
import numpy as np
import aiacc, aiacc.array as hvd
hvd.init()
handles = [hvd.allreduce_async(np.ones(1 << 20, np.float32), name=str(n)) for n in range(8)]
for handle in handles:
    hvd.synchronize(handle)
print(f"<{hvd.rank()} on {aiacc.basics.engine()}>", flush=True)
"""


def _run(flavour, ranks, mib, env):
    """In a mount namespace whose /dev/shm has so many MiB; exit status and output."""
    mount = f"mount -t tmpfs -o size={mib}m tmpfs /dev/shm"
    probe = run_program(["unshare", "-m", "sh", "-c", mount])
    if probe.returncode != 0:
        missing(f"no mount namespace here: {probe.stderr!r}")
    command = [*mpirun(flavour), "-np", str(ranks), sys.executable, "-c", PROGRAM]
    inside = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
    done = run_program(inside, env=rank_environment(env), merged=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("flavour", "mib", "engine"),
    [
        pytest.param("mpich", 128, "hierarchical-mpi", id="enough"),
        # Between these MPICH crashes in MPI_Init; with less it takes what is not there (SIGBUS).
        pytest.param("mpich", 18, "hierarchical", id="too small for MPICH"),
        pytest.param("openmpi", 18, "hierarchical-mpi", id="enough for Open MPI"),
        pytest.param("mpich", 1, "hierarchical", id="next to nothing"),
        pytest.param("openmpi", 1, "hierarchical", id="Open MPI", marks=pytest.mark.nightly),
    ],
)
def test_auto_falls_back_and_says_why(flavour, mib, engine):
    status, output = _run(flavour, 4, mib, {"PRETEND_HOSTS": "2"})
    assert status == 0, output
    expected = [f"<{rank} on {engine}>" for rank in range(4)]
    assert sorted(re.findall(r"<\d on [-\w]+>", output)) == expected, output
    lines = [line for line in output.splitlines() if "tensors travel by hierarchical" in line]
    assert len(lines) == (1 if engine == "hierarchical" else 0), output
    if lines:
        assert f"/dev/shm has {mib} MiB left" in lines[0]


@pytest.mark.parametrize("flavour", ["mpich", pytest.param("openmpi", marks=pytest.mark.nightly)])
def test_mpi_that_was_asked_for_is_an_error_on_every_rank(flavour):
    status, output = _run(flavour, 2, 1, {"AIACC_ENGINE": "mpi", "PRETEND_HOSTS": "2"})
    assert status != 0
    assert "engine mpi cannot run on rank 0: /dev/shm has 1 MiB left" in output
    assert "Bus error" not in output
