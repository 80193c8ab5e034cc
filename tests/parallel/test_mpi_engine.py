"""The `mpi` engine under mpirun: tests/cpp/engines/mpi_engine_test.cc in several shapes of a job.

Builds nothing: the C++ tests (`make test-cpp`) and the plug-in have to be there.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import aiacc
from aiacc import _core, mpi_library
from aiacc.config import child_environment, executable_path
from tests.support.ranks import ROOT

PLUGIN = Path(aiacc.__file__).with_name("libaiacc_mpi.so")
PROGRAM = "tests/cpp/engines_mpi_engine_test"
TIMEOUT_S = 110

#: MPICH pretends that the ranks of this machine are on several.
ONE_NODE: dict[str, str] = {}
TWO_NODES = {"MPIR_CVAR_NUM_CLIQUES": "2"}
EVERY_RANK_A_NODE = {"MPIR_CVAR_NOLOCAL": "1"}
FOUR_INTERFACES = {
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_CH4_NUM_VCIS": "4",
}


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("size", "shape", "nodes"),
    [
        pytest.param(1, ONE_NODE, 1, id="alone"),
        pytest.param(2, ONE_NODE, 1, id="two"),
        pytest.param(3, ONE_NODE, 1, id="three"),
        pytest.param(4, TWO_NODES, 2, id="four on two nodes"),
        pytest.param(3, TWO_NODES, 3, id="three on unequal nodes"),
        pytest.param(2, EVERY_RANK_A_NODE, 2, id="two nodes"),
        pytest.param(3, FOUR_INTERFACES, 3, id="three nodes, four interfaces"),
    ],
)
def test_engine(size: int, shape: dict[str, str], nodes: int) -> None:
    mpirun, library, program = _needed()
    if shape and _core.build_info()["mpi_flavour"] != "mpich":
        pytest.skip("only MPICH pretends to have several nodes")
    before = _shared_memory()
    done = subprocess.run(
        [mpirun, "-np", str(size), program, PLUGIN, library, "--gtest_brief=1"],
        env=child_environment(shape),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"{size} ranks on {nodes} nodes" in done.stdout
    assert done.stdout.count("PASSED") == size, done.stdout
    assert _shared_memory() <= before


def _needed() -> tuple[str, str, Path]:
    """Paths of mpirun, of the MPI library and of the test program; skips if one is missing."""
    mpirun = shutil.which("mpirun", path=executable_path())
    if mpirun is None:
        pytest.skip("no mpirun; pip install mpich")
    if not PLUGIN.exists():
        pytest.skip(f"no {PLUGIN}; build where an MPI is installed")
    library = next(mpi_library._candidates(), None)
    if library is None:
        pytest.skip("no MPI library; pip install mpich")
    programs = [path / PROGRAM for path in ROOT.glob("build/*") if (path / PROGRAM).exists()]
    if not programs:
        pytest.skip(f"no build/*/{PROGRAM}; make test-cpp")
    return mpirun, library, max(programs, key=lambda path: path.stat().st_mtime)


def _shared_memory() -> set[str]:
    """Files that MPICH keeps while a job runs, and leaves behind when it is killed."""
    return {path.name for path in Path("/dev/shm").glob("mpich_*")}
