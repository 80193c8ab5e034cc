"""Engine `mpi` on a host with little shared memory, such as a container with its 64 MiB."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.needed import missing
from tests.support.ranks import ROOT, mpirun, rank_environment

pytestmark = pytest.mark.mpi

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


def _run(flavour, ranks, mib, env, program=PROGRAM):
    """In a mount namespace whose /dev/shm has so many MiB; exit status and output."""
    mount = f"mount -t tmpfs -o size={mib}m tmpfs /dev/shm"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False)
    if probe.returncode != 0:
        missing(f"no mount namespace here: {probe.stderr!r}")
    command = [*mpirun(flavour), "-np", str(ranks), sys.executable, "-c", program, flavour]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *command],
        env=rank_environment(env),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"])
@pytest.mark.parametrize(
    ("mib", "engine"),
    [
        pytest.param(128, "hierarchical-mpi", id="enough"),
        # Between these MPICH crashes in MPI_Init; with less it takes what is not there (SIGBUS).
        pytest.param(18, "hierarchical", id="too small for MPICH"),
        pytest.param(1, "hierarchical", id="next to nothing"),
    ],
)
def test_auto_falls_back_and_says_why(flavour, mib, engine):
    if flavour == "openmpi" and mib == 18:
        engine = "hierarchical-mpi"  # it takes less
    status, output = _run(flavour, 4, mib, {"PRETEND_HOSTS": "2"})
    assert status == 0, output
    expected = [f"<{rank} on {engine}>" for rank in range(4)]
    assert sorted(re.findall(r"<\d on [-\w]+>", output)) == expected, output
    lines = [line for line in output.splitlines() if "tensors travel by hierarchical" in line]
    assert len(lines) == (1 if engine == "hierarchical" else 0), output
    if lines:
        assert f"/dev/shm has {mib} MiB left" in lines[0]


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"])
def test_mpi_that_was_asked_for_is_an_error_on_every_rank(flavour):
    status, output = _run(flavour, 2, 1, {"AIACC_ENGINE": "mpi", "PRETEND_HOSTS": "2"})
    assert status != 0
    assert "engine mpi cannot run on rank 0: /dev/shm has 1 MiB left" in output
    assert "Bus error" not in output
