"""Every mpirun with every build: MPI of the launcher's kind if there is a plug-in, else TCP.

Between hosts with a fabric: without one, and within a host, MPI has nothing to do.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from aiacc import mpi_library
from aiacc.bootstrap.job_plan import default_lanes
from aiacc.run.programs import mpi_launchers
from tests.support.ranks import ROOT, mpirun, rank_environment

pytestmark = pytest.mark.mpi

FLAVOURS = ["mpich", "openmpi"]
OTHER = {"mpich": "openmpi", "openmpi": "mpich"}

#: A rank of a build that has the plug-ins in the given folder, and no others.
PROGRAM = """
import ctypes, os, sys
if "ONE_HOST" not in os.environ:
    import tests.support.pretend_hosts
from pathlib import Path
import numpy as np
import aiacc, aiacc.array as hvd
from aiacc import mpi_library
from tests.parallel.launch.test_launchers import loaded_mpi

mpi_library._FOLDER = Path(sys.argv[1])
for step in sys.argv[2:]:
    flavour, _, call = step.partition("-")
    library = loaded_mpi(flavour)
    if call:
        provided = ctypes.c_int()
        assert library.MPI_Init_thread(None, None, 3, ctypes.byref(provided)) == 0
hvd.init()
assert hvd.allreduce(np.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
hvd.barrier()
started = []
for flavour, names in mpi_library._SONAMES.items():
    for path in mpi_library.mapped_libraries(*names):
        flag = ctypes.c_int()
        ctypes.CDLL(path).MPI_Initialized(ctypes.byref(flag))
        if flag.value and flavour not in started:
            started.append(flavour)
print(f"<{hvd.rank()} of {hvd.size()} on {aiacc.basics.engine()}, started: {started}>", flush=True)
if sys.argv[2:] and sys.argv[2].endswith("-init"):
    hvd.shutdown()
    library.MPI_Finalize()
"""


def _run(flavour, folder, *steps, env=None):
    done = subprocess.run(
        [*mpirun(flavour), "-np", "2", sys.executable, "-c", PROGRAM, str(folder), *steps],
        env=rank_environment(env or {}),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stdout


def _build(folder, flavours):
    """A folder with the plug-ins of these flavours."""
    for flavour in flavours:
        mpirun(flavour)  # or skip
        (folder / mpi_library.plugin(flavour).name).symlink_to(mpi_library.plugin(flavour))
    return folder


def _said(output):
    """What the ranks say, in their order."""
    return sorted(re.findall(r"<\d of 2 on .*?>", output))


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("built", [[], ["mpich"], ["openmpi"], FLAVOURS], ids="+".join)
def test_the_launcher_chooses_among_the_plugins(tmp_path, flavour, built):
    status, output = _run(flavour, _build(tmp_path, built))
    engine, started = ("mpi", [flavour]) if flavour in built else ("tcp", [])
    assert status == 0, output
    assert _said(output) == [f"<{n} of 2 on {engine}, started: {started}>" for n in range(2)]
    lines = [line for line in output.splitlines() if "tensors travel by" in line]
    if engine == "mpi":
        assert lines == []
    else:
        (line,) = lines
        assert f"{mpi_library.NAMES[flavour]}'s mpirun started this process" in line
        assert "rebuild aiacc" in line


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("built", [[], FLAVOURS], ids="+".join)
@pytest.mark.parametrize(
    ("env", "engine"),
    [
        pytest.param({"ONE_HOST": "1"}, "hierarchical", id="one host"),
        pytest.param({"NO_FABRIC": "1"}, "tcp", id="no fabric"),
    ],
)
def test_a_job_without_use_for_mpi_leaves_it_alone(tmp_path, flavour, built, env, engine):
    status, output = _run(flavour, _build(tmp_path, built), env=env)
    assert status == 0, output
    assert _said(output) == [f"<{n} of 2 on {engine}, started: []>" for n in range(2)]
    assert "tensors travel by" not in output


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_mpi_that_is_loaded_or_initialised_already_is_used(tmp_path, flavour):
    folder = _build(tmp_path, FLAVOURS)
    for step in (flavour, f"{flavour}-init"):
        status, output = _run(flavour, folder, step)
        assert status == 0, output
        assert _said(output) == [f"<{n} of 2 on mpi, started: ['{flavour}']>" for n in range(2)]


@pytest.mark.parametrize("netmod", ["ofi", "ucx"])
def test_a_script_may_finalise_an_mpi_that_is_between_nodes(tmp_path, netmod):
    env = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": netmod}
    status, output = _run("mpich", _build(tmp_path, FLAVOURS), "mpich-init", env=env)
    assert status == 0, output
    assert _said(output) == [f"<{n} of 2 on mpi, started: ['mpich']>" for n in range(2)]


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_mpi_of_the_other_kind_in_the_process_is_left_alone(tmp_path, flavour):
    status, output = _run(flavour, _build(tmp_path, FLAVOURS), OTHER[flavour])
    assert status == 0, output
    assert _said(output) == [f"<{n} of 2 on tcp, started: []>" for n in range(2)]
    assert output.count("already loaded in this process, is ") == 1
    assert output.count("mpirun of the MPI that is loaded") == 1


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_named_library_of_the_other_kind_is_refused(tmp_path, flavour):
    folder = _build(tmp_path, FLAVOURS)
    library = next(mpi_library._candidates(OTHER[flavour]))
    env = {"AIACC_MPI_LIBRARY": library}
    status, output = _run(flavour, folder, env=env)
    assert status == 0, output
    assert _said(output) == [f"<{n} of 2 on tcp, started: []>" for n in range(2)]
    assert f"(expected {mpi_library.NAMES[flavour]}, for which" in output
    status, output = _run(flavour, folder, env={**env, "AIACC_ENGINE": "mpi"})
    assert status != 0
    assert "engine mpi cannot run on rank 0" in output
    assert "AIACC_MPI_LIBRARY" in output


def test_check_build_names_what_is_served():
    done = subprocess.run(
        [sys.executable, "-m", "aiacc.run", "--check-build"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    served = mpi_library.built()
    for flavour, name in mpi_library.NAMES.items():
        mark = "X" if flavour in served else " "
        (line,) = re.findall(rf"^  \[(.)\] {name}  +(.*)$", done.stdout, re.MULTILINE)
        assert line[0] == mark
        assert served.get(flavour, mpi_library.HEADERS[flavour]) in line[1]
    for launcher in mpi_launchers():
        mark = "X" if launcher.flavour in served else " "
        assert re.search(rf"\[{mark}\] mpirun +{re.escape(launcher.program)} \(", done.stdout)
    lanes = [*(default_lanes(hosts, tuned=False) for hosts in (1, 2)), default_lanes(2, tuned=True)]
    said = "  lanes: {} on one host, {} on several, up to {} with --autotune".format(*lanes)
    assert said in done.stdout
