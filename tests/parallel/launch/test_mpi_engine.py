"""The `mpi` engine under mpirun: its C++ test, mpi_engine_test.cc, in several shapes of a job.

Builds nothing: the C++ tests (`make test-cpp`) and the plug-in have to be there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aiacc import mpi_library
from aiacc.config import child_environment
from tests.support.needed import missing
from tests.support.programs import run_program
from tests.support.ranks import ROOT, mpirun

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


nightly = pytest.mark.nightly


@pytest.mark.mpi
@pytest.mark.alone  # looks at all of /dev/shm
@pytest.mark.parametrize(
    ("flavour", "size", "shape"),
    [
        pytest.param("mpich", 1, ONE_NODE, id="alone"),
        pytest.param("mpich", 2, ONE_NODE, id="two"),
        pytest.param("mpich", 3, ONE_NODE, id="three", marks=nightly),
        pytest.param("mpich", 4, TWO_NODES, id="four on two nodes"),
        pytest.param("mpich", 3, TWO_NODES, id="three on unequal nodes", marks=nightly),
        pytest.param("mpich", 2, EVERY_RANK_A_NODE, id="two nodes", marks=nightly),
        pytest.param("mpich", 3, FOUR_INTERFACES, id="three nodes, four interfaces"),
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
