"""Engine `mpi` on a host with little shared memory, such as a container with its 64 MiB."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.ranks import ROOT, mpirun, rank_environment

pytestmark = pytest.mark.mpi

PROGRAM = """
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
        pytest.skip(f"no mount namespace here: {probe.stderr!r}")
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
    ("ranks", "mib", "engine"),
    [
        pytest.param(2, 64, "mpi", id="enough"),
        pytest.param(4, 48, "tcp", id="too small for the lanes"),
        # Between these MPICH crashes in MPI_Init; with less it takes what is not there (SIGBUS).
        pytest.param(2, 18, "tcp", id="too small for MPICH"),
        pytest.param(2, 1, "tcp", id="next to nothing"),
    ],
)
def test_auto_falls_back_and_says_why(flavour, ranks, mib, engine):
    lanes = "8" if mib == 48 else "4"
    status, output = _run(flavour, ranks, mib, {"AIACC_LANES": lanes})
    assert status == 0, output
    expected = [f"<{rank} on {engine}>" for rank in range(ranks)]
    assert sorted(re.findall(r"<\d on \w+>", output)) == expected, output
    lines = [line for line in output.splitlines() if "tensors travel by tcp" in line]
    assert len(lines) == (1 if engine == "tcp" else 0), output
    if lines:
        assert f"/dev/shm has {mib} MiB left" in lines[0]


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"])
def test_mpi_that_was_asked_for_is_an_error_on_every_rank(flavour):
    status, output = _run(flavour, 2, 1, {"AIACC_ENGINE": "mpi"})
    assert status != 0
    assert "engine mpi cannot run on rank 0: /dev/shm has 1 MiB left" in output
    assert "Bus error" not in output


INITIALISED = """
import ctypes, sys
from tests.parallel.launch.test_launchers import loaded_mpi
provided = ctypes.c_int()
library = loaded_mpi(sys.argv[1])
assert library.MPI_Init_thread(None, None, 3, ctypes.byref(provided)) == 0
"""


@pytest.mark.parametrize(("flavour", "mib"), [("mpich", 24), ("openmpi", 12)])
def test_memory_that_is_gone_when_mpi_has_started_is_missed_by_all(flavour, mib):
    # MPI was initialised by others, so nothing was asked before; the lanes' memory is.
    program = INITIALISED + PROGRAM + "hvd.shutdown(); library.MPI_Finalize()"
    status, output = _run(flavour, 2, mib, {"AIACC_LANES": "16"}, program)
    assert status == 0, output
    assert output.count("tensors travel by tcp") == 1, output
    assert "has no shared memory for 17 lanes of 2 ranks" in output
