"""What the other ranks, and the launcher, learn when the script of one rank ends early."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.ranks import ROOT, mpirun, rank_environment

FLAVOURS = ["mpich", "openmpi"]

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
    threading.Event().wait(25)
    print("rank 0 was left alone", flush=True)
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


def _run(command, how, path="", engine="auto"):
    """Status and output of the program; with a ``path`` rank 0 waits for rank 1."""
    if path:
        os.mkfifo(path)
    done = subprocess.run(
        [*command, sys.executable, "-c", PROGRAM, str(path), how],
        env=rank_environment({"AIACC_ENGINE": engine}),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.mpi
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("engine", ["mpi", "tcp"])
def test_mpirun_ends_the_job_of_a_rank_that_raises(flavour, engine):
    status, output = _run([*mpirun(flavour), "-np", "2"], "1 / 0", engine=engine)
    assert "ZeroDivisionError: division by zero" in output
    assert "rank 0 was left alone" not in output
    assert status != 0


@pytest.mark.mpi
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("engine", ["mpi", "tcp"])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("pass", "rank 1's script has ended; "),
        ("import code; code.InteractiveInterpreter().runsource('1 / 0')", "has ended; "),
        ("hvd.shutdown()", "rank 1 has shut down; call init on every rank to go on"),
    ],
    ids=["ends", "catches", "shuts down"],
)
def test_mpirun_leaves_a_job_alone_whose_rank_ends_in_order(tmp_path, flavour, engine, how, words):
    command = [*mpirun(flavour), "-np", "2"]
    status, output = _run(command, how, tmp_path / "pipe", engine)
    assert words in output
    assert "rank 0 lives" in output
    assert status == 0, output


@pytest.mark.mpi
@pytest.mark.parametrize("engine", ["mpi", "tcp"])
def test_mpirun_leaves_a_job_alone_whose_rank_raises_after_shutdown(tmp_path, engine):
    # Open MPI's ends a job for any exit code but 0.
    how = "hvd.shutdown(); 1 / 0"
    _, output = _run([*mpirun("mpich"), "-np", "2"], how, tmp_path / "pipe", engine)
    assert "ZeroDivisionError: division by zero" in output
    assert "rank 0 lives" in output


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("pass", "rank 1's script has ended; call as many operations on every rank"),
        ("1 / 0", "rank 1's script has ended by ZeroDivisionError: division by zero; look at its"),
        ("hvd.shutdown()", "rank 1 has shut down; call init on every rank to go on"),
    ],
)
def test_the_others_are_told_how_a_script_has_ended(tmp_path, how, words):
    command = [sys.executable, "-m", "aiacc.run", "-np", "2"]
    _, output = _run(command, how, tmp_path / "pipe")
    assert f"rank 0 saw: [core] {words}" in output
