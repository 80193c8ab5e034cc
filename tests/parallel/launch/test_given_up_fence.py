"""Open MPI at the end of a rank that is still in a fence of PMIx, which it has given up."""

import ctypes
import os
import sys

import pytest

from tests.parallel.launch.test_launchers import loaded_mpi, run_under_mpirun

#: Rank 1 gives up an exchange, and its Python is over when rank 0 ends and so completes the fence.
OUTLIVED = """
import ctypes, os, sys
from aiacc import _core, mpi_library
from tests.parallel.launch.test_given_up_fence import finalize_when_it_ends
from tests.parallel.launch.test_launchers import SHORT_S, attempt
assert not mpi_library.load("", "openmpi")
rank, *_ = _core.mpi_initialize()
lives = sys.argv[1] + ".lives"
if rank == 0:
    os.open(lives, os.O_WRONLY)
    with open(sys.argv[1]) as pipe:
        pipe.read()
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


@pytest.mark.mpi
@pytest.mark.parametrize("rank_1", ["any time", "last"])
def test_openmpi_may_complete_what_was_given_up_after_python_has_ended(tmp_path, rank_1):
    for name in ("pipe", "pipe.lives"):
        os.mkfifo(tmp_path / name)
    done = run_under_mpirun(
        sys.executable, "-c", OUTLIVED, str(tmp_path / "pipe"), rank_1, flavour="openmpi"
    )
    assert done.returncode == 0, done.stdout
    assert "of 2 did not come within 0.5 s of rank 1" in done.stdout
    assert "rank 0 ends" in done.stdout
