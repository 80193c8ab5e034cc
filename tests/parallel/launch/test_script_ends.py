"""What the other ranks, and the launcher, learn when the script of one rank ends early."""

import os

import pytest

from tests.support.programs import run_program
from tests.support.ranks import launch_command, rank_environment

#: Rank 0 outlives rank 1, which ends as its argument says, by a second.
PROGRAM = """
import signal, sys, threading
import numpy as np
import aiacc, aiacc.array as hvd
path, how = sys.argv[1:]
hvd.init()
hvd.allreduce(np.ones(3), name="warm")
if hvd.rank() == 1:
    if path:
        pipe = open(path, "w")  # closed when the process has ended
    exec(how)
elif not path:
    signal.pause()  # until the launcher ends it
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # of aiaccrun, which may be faster
    pipe = open(path)
    try:
        hvd.allreduce(np.ones(3), name="one more")
    except aiacc.ShutdownError as error:
        print(f"rank 0 saw: {error}", flush=True)
    if aiacc.basics.engine() != "mpi":  # MPI_Finalize waits for rank 0
        pipe.read()
        threading.Event().wait(1.0)  # until mpirun has had time to end rank 0: no event tells
    print("rank 0 lives", flush=True)
"""
RAISES = "ZeroDivisionError: division by zero"
ENDED = "rank 1's script has ended; call as many operations on every rank"
SHUT_DOWN = "rank 1 has shut down; call init on every rank to go on"


def _run(launcher, how, path="", engine="auto"):
    """Status and output of the program; with a ``path`` rank 0 waits for rank 1."""
    if path:
        os.mkfifo(path)
    command = launch_command(launcher, 2, ["-c", PROGRAM, str(path), how])
    done = run_program(command, env=rank_environment({"AIACC_ENGINE": engine}), merged=True)
    return done.returncode, done.stdout


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("launcher", "engine"),
    [
        ("mpirun", "mpi"),
        ("openmpi", "tcp"),
        pytest.param("mpirun", "tcp", marks=pytest.mark.nightly),
        pytest.param("openmpi", "mpi", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    ("how", "words"), [("1 / 0", RAISES), ("pass", ENDED), ("hvd.shutdown()", SHUT_DOWN)]
)
def test_mpirun_ends_a_job_if_a_rank_raises_and_else_leaves_it_alone(
    tmp_path, launcher, engine, how, words
):
    raises = words == RAISES
    status, output = _run(launcher, how, "" if raises else tmp_path / "pipe", engine)
    assert words in output
    assert (status != 0) == raises, output
    assert ("rank 0 lives" in output) != raises


@pytest.mark.mpi
@pytest.mark.parametrize("engine", ["mpi", "tcp"])
def test_mpirun_leaves_a_job_alone_whose_rank_raises_after_shutdown(tmp_path, engine):
    # Open MPI's ends a job for any exit code but 0.
    _, output = _run("mpirun", "hvd.shutdown(); 1 / 0", tmp_path / "pipe", engine)
    assert RAISES in output
    assert "rank 0 lives" in output


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("pass", ENDED),
        ("1 / 0", f"rank 1's script has ended by {RAISES}; look at its"),
        ("hvd.shutdown()", SHUT_DOWN),
    ],
)
def test_the_others_are_told_how_a_script_has_ended(tmp_path, how, words):
    _, output = _run("aiaccrun", how, tmp_path / "pipe")
    assert f"rank 0 saw: [core] {words}" in output
