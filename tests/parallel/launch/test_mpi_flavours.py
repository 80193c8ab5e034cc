"""Every mpirun with every build: MPI of the launcher's kind if there is a plug-in, else TCP.

Between hosts with a fabric: without one, and within a host, MPI has nothing to do.
"""

import re
import sys

import pytest

from aiacc import mpi_library
from aiacc.bootstrap.job_plan import default_lanes
from aiacc.run.programs import mpi_launchers
from tests.parallel.launch.helpers import run_under_mpirun
from tests.support.programs import run_program
from tests.support.ranks import mpirun

pytestmark = pytest.mark.mpi
nightly = pytest.mark.nightly

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
from tests.parallel.launch.helpers import loaded_mpi

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
    command = (sys.executable, "-c", PROGRAM, folder, *steps)
    return run_under_mpirun(*command, flavour=flavour, env=env)


def _build(folder, flavours):
    """A folder with the plug-ins of these flavours."""
    for flavour in flavours:
        mpirun(flavour)  # or skip
        (folder / mpi_library.plugin(flavour).name).symlink_to(mpi_library.plugin(flavour))
    return folder


def _check(run, engine, started=()):
    """Assert that both ranks say so; the output of the job."""
    status, output = run
    assert status == 0, output
    said = sorted(re.findall(r"<\d of 2 on .*?>", output))
    assert said == [f"<{n} of 2 on {engine}, started: {list(started)}>" for n in range(2)]
    return output


@pytest.mark.parametrize(
    ("flavour", "built"),
    [
        *(("mpich", built) for built in ([], ["mpich"], ["openmpi"], FLAVOURS)),
        ("openmpi", FLAVOURS),
        *(pytest.param("openmpi", built, marks=nightly) for built in ([], ["mpich"], ["openmpi"])),
    ],
)
def test_the_launcher_chooses_among_the_plugins(tmp_path, flavour, built):
    run = _run(flavour, _build(tmp_path, built))
    if flavour in built:
        assert "tensors travel by" not in _check(run, "mpi", [flavour])
    else:
        lines = _check(run, "tcp").splitlines()
        (line,) = [line for line in lines if "tensors travel by" in line]
        assert f"{mpi_library.NAMES[flavour]}'s mpirun started this process" in line
        assert "rebuild aiacc" in line


@pytest.mark.parametrize("flavour", ["mpich", pytest.param("openmpi", marks=nightly)])
@pytest.mark.parametrize("built", [[], FLAVOURS], ids="+".join)
@pytest.mark.parametrize(
    ("env", "engine"),
    [
        pytest.param({"ONE_HOST": "1"}, "hierarchical", id="one host"),
        pytest.param({"NO_FABRIC": "1"}, "tcp", id="no fabric"),
    ],
)
def test_a_job_without_use_for_mpi_leaves_it_alone(tmp_path, flavour, built, env, engine):
    output = _check(_run(flavour, _build(tmp_path, built), env=env), engine)
    assert "tensors travel by" not in output


@pytest.mark.parametrize(
    ("flavour", "call", "netmod"),
    [
        *((flavour, call, "") for flavour in FLAVOURS for call in ("", "-init")),
        *(("mpich", "-init", netmod) for netmod in ("ofi", "ucx")),  # between nodes
    ],
)
def test_an_mpi_that_is_there_already_is_used(tmp_path, flavour, call, netmod):
    env = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": netmod} if netmod else {}
    run = _run(flavour, _build(tmp_path, FLAVOURS), flavour + call, env=env)
    _check(run, "mpi", [flavour])


@pytest.mark.parametrize("flavour", ["mpich", pytest.param("openmpi", marks=nightly)])
def test_an_mpi_of_the_other_kind_in_the_process_is_left_alone(tmp_path, flavour):
    output = _check(_run(flavour, _build(tmp_path, FLAVOURS), OTHER[flavour]), "tcp")
    assert output.count("already loaded in this process, is ") == 1
    assert output.count("mpirun of the MPI that is loaded") == 1


@pytest.mark.parametrize("flavour", ["mpich", pytest.param("openmpi", marks=nightly)])
def test_a_named_library_of_the_other_kind_is_refused(tmp_path, flavour):
    folder = _build(tmp_path, FLAVOURS)
    env = {"AIACC_MPI_LIBRARY": mpi_library.candidates("", OTHER[flavour])[0]}
    output = _check(_run(flavour, folder, env=env), "tcp")
    assert f"(expected {mpi_library.NAMES[flavour]}, for which" in output
    status, output = _run(flavour, folder, env={**env, "AIACC_ENGINE": "mpi"})
    assert status != 0
    assert "engine mpi cannot run on rank 0" in output
    assert "AIACC_MPI_LIBRARY" in output


def test_check_build_names_what_is_served():
    said = run_program([sys.executable, "-m", "aiacc.run", "--check-build"], check=True).stdout
    served = mpi_library.built()
    for flavour, name in mpi_library.NAMES.items():
        mark = "X" if flavour in served else " "
        (line,) = re.findall(rf"^  \[(.)\] {name}  +(.*)$", said, re.MULTILINE)
        assert line[0] == mark
        assert served.get(flavour, mpi_library.HEADERS[flavour]) in line[1]
    for launcher in mpi_launchers():
        mark = "X" if launcher.flavour in served else " "
        assert re.search(rf"\[{mark}\] mpirun +{re.escape(launcher.program)} \(", said)
    lanes = [*(default_lanes(hosts, tuned=False) for hosts in (1, 2)), default_lanes(2, tuned=True)]
    text = "  lanes: {} on one host, {} on several, up to {} with --autotune".format(*lanes)
    assert text in said
