"""The `mpi` engine under mpirun: its C++ test, mpi_engine_test.cc, in several shapes of a job; and
on a host with little shared memory.

Builds nothing: the C++ tests (`make test-cpp`) and the plug-in have to be there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from aiacc import mpi_library
from aiacc.config import child_environment
from tests.support.programs import missing, run_program
from tests.support.ranks import ROOT, mpirun, rank_environment

PROGRAM = "tests/cpp/engines_mpi_mpi_engine_test"

#: MPICH pretends that the ranks of this machine are on several.
ONE_NODE: dict[str, str] = {}
TWO_NODES = {"MPIR_CVAR_NUM_CLIQUES": "2"}
EVERY_RANK_A_NODE = {"MPIR_CVAR_NOLOCAL": "1"}
FOUR_INTERFACES = {
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_CH4_NUM_VCIS": "4",
}

#: Looks at all of /dev/shm.
pytestmark = [pytest.mark.mpi, pytest.mark.alone]
nightly = pytest.mark.nightly


@pytest.mark.parametrize(
    ("flavour", "size", "shape"),
    [
        pytest.param("mpich", 1, ONE_NODE, id="alone"),
        pytest.param("mpich", 2, ONE_NODE, id="two", marks=nightly),
        pytest.param("mpich", 3, ONE_NODE, id="three", marks=nightly),
        pytest.param("mpich", 4, TWO_NODES, id="four on two nodes", marks=nightly),
        pytest.param("mpich", 3, TWO_NODES, id="three on unequal nodes", marks=nightly),
        pytest.param("mpich", 2, EVERY_RANK_A_NODE, id="two nodes"),
        pytest.param("mpich", 3, FOUR_INTERFACES, id="three nodes, four interfaces", marks=nightly),
        # Open MPI does not pretend to have several nodes.
        pytest.param("openmpi", 1, ONE_NODE, id="alone, Open MPI", marks=nightly),
        pytest.param("openmpi", 3, ONE_NODE, id="three, Open MPI"),
    ],
)
def test_engine(flavour, size: int, shape: dict[str, str]) -> None:
    launcher, library, program = _needed(flavour)
    before = _shared_memory()
    command = [*launcher, "-np", str(size), program, mpi_library.plugin(flavour), library]
    done = run_program([*command, "--gtest_brief=1"], env=child_environment(shape), merged=True)
    assert done.returncode == 0, done.stdout
    assert f"{size} ranks" in done.stdout
    assert done.stdout.count("PASSED") == size, done.stdout
    assert _shared_memory() <= before


def _needed(flavour) -> tuple[list[str], str, Path]:
    """mpirun, the MPI library and the test program; `missing` if one is not there."""
    launcher = mpirun(flavour)
    if not mpi_library.plugin(flavour).exists():
        missing(f"no {mpi_library.plugin(flavour)}; build where an MPI is installed")
    programs = [path / PROGRAM for path in ROOT.glob("build/*") if (path / PROGRAM).exists()]
    if not programs:
        missing(f"no build/*/{PROGRAM}; make test-cpp")
    newest = max(programs, key=lambda path: path.stat().st_mtime)
    return launcher, mpi_library.candidates("", flavour)[0], newest


def _shared_memory() -> set[str]:
    """Files of jobs that are running, or were killed."""
    return {path.name for name in ("mpich_*", "aiacc-*") for path in Path("/dev/shm").glob(name)}


# --- with little shared memory, such as a container with its 64 MiB

ON_HOSTS = """
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
    command = [*mpirun(flavour), "-np", str(ranks), sys.executable, "-c", ON_HOSTS]
    inside = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *command]
    done = run_program(inside, env=rank_environment(env), merged=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("flavour", "mib", "asked", "engine"),
    [
        pytest.param("mpich", 128, "auto", "hierarchical-mpi", id="enough"),
        # Between these MPICH crashes in MPI_Init; with less it takes what is not there (SIGBUS).
        pytest.param("mpich", 18, "auto", "hierarchical", id="too small for MPICH"),
        pytest.param("openmpi", 18, "auto", "hierarchical-mpi", id="enough for Open MPI"),
        pytest.param("mpich", 1, "auto", "hierarchical", id="next to nothing"),
        pytest.param("openmpi", 1, "auto", "hierarchical", id="Open MPI", marks=nightly),
        pytest.param("mpich", 1, "mpi", "", id="asked for MPICH"),
        pytest.param("openmpi", 1, "mpi", "", id="asked for Open MPI", marks=nightly),
    ],
)
def test_auto_falls_back_and_says_why_and_mpi_that_was_asked_for_is_an_error(
    flavour, mib, asked, engine
):
    status, output = _run(flavour, 4, mib, {"AIACC_ENGINE": asked, "PRETEND_HOSTS": "2"})
    expected = [f"<{rank} on {engine}>" for rank in range(4) if engine]
    assert sorted(re.findall(r"<\d on [-\w]+>", output)) == expected, output
    assert (status == 0) == bool(engine), output
    lines = [line for line in output.splitlines() if "tensors travel by hierarchical" in line]
    assert len(lines) == (engine == "hierarchical"), output
    assert all(f"/dev/shm has {mib} MiB left" in line for line in lines)
    refused = "engine mpi cannot run on rank 0: /dev/shm has 1 MiB left"
    assert (refused in output) == (not engine)
    assert "Bus error" not in output
