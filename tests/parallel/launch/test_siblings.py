"""Processes that take themselves for what another one is are told, and nobody else is."""

import multiprocessing
import subprocess
import sys
import warnings

import pytest

import aiacc
from tests.support.programs import run_program
from tests.support.ranks import ROOT, launch_command, rank_environment, run_ranks

CHILDREN = 3


def alone(together, told):
    """One child: be alone, at the same time as the others."""
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for _ in range(2):
            aiacc.init()
            assert aiacc.size() == 1
            aiacc.shutdown()
    together.wait()
    told.put([str(warning.message) for warning in record])


def start_children(method, at_once):
    """Texts that the children were told."""
    context = multiprocessing.get_context(method)
    together = context.Barrier(CHILDREN if at_once else 1)
    told = context.SimpleQueue()
    children = [context.Process(target=alone, args=(together, told)) for _ in range(CHILDREN)]
    for child in children:
        child.start()
        if not at_once:
            child.join()
    for child in children:
        child.join()
        assert child.exitcode == 0
    return [text for _ in children for text in told.get()]


@pytest.mark.parametrize(
    ("method", "at_once", "settings", "told"),
    [
        *((method, True, {}, 1) for method in ("spawn", "fork", "forkserver")),
        pytest.param("fork", False, {}, 0, id="one after the other"),
        pytest.param("fork", True, {"AIACC_RANK": "0", "AIACC_SIZE": "1"}, 0, id="asked for"),
    ],
)
def test_one_of_several_at_once_is_told_and_nobody_else(method, at_once, settings, told):
    (texts,) = run_ranks(1, start_children, method, at_once, launcher="python", env=settings)
    assert len(texts) == told
    for text in texts:
        assert "are each a job of one rank" in text
        assert "AIACC_ADDR=127.0.0.1:<a free port>" in text


def test_processes_that_multiprocessing_did_not_start_are_not_told():
    child = "import aiacc, sys; aiacc.init(); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-W", "error", "-c", child]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [
        subprocess.Popen(command, cwd=ROOT, env=rank_environment({}), **pipes) for _ in range(3)
    ]
    for one in children:  # all are up before the first ends
        assert one.stdout.readline() == b"\n"
    for one in children:
        one.communicate()
        assert one.returncode == 0


WORKERS = """
import multiprocessing
import aiacc
aiacc.init()
def work(together):
    assert aiacc.is_initialized()
    together.wait()
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    workers = [context.Process(target=work, args=(together,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
"""


def test_workers_that_import_a_script_which_initialises(tmp_path):
    (tmp_path / "train.py").write_text(WORKERS)
    command = [sys.executable, str(tmp_path / "train.py")]
    done = run_program(command, env=rank_environment({}))
    assert (done.returncode, done.stderr) == (0, "")


#: Starts processes that inherit what makes it a rank; each says what it is, or why it is nothing.
RANK_WITH_CHILDREN = """
import multiprocessing, os, subprocess, sys
import aiacc, aiacc.array as hvd
command = [sys.executable, __file__, "child"]
def be():
    try:
        aiacc.init()
    except aiacc.BootstrapError as error:
        print(f"{error}\\n", end="", flush=True)
        return
    print(f"{aiacc.rank()} of {aiacc.size()}\\n", end="", flush=True)
    sys.stdin.read()
    aiacc.shutdown()
def fork():
    aiacc.shutdown()  # of what a fork has inherited
    be()
def program(**changes):
    subprocess.run(command, env={**os.environ, **changes}, stdin=subprocess.DEVNULL, check=True)
def before():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as child:
        assert child.stdout.readline().endswith(b" of 2\\n")
        be()
def orphan():
    ended, write = os.pipe()
    line = f"exec 3<&0; (read go <&3; exec {sys.executable} {__file__} child) &"
    shell = subprocess.Popen(line, shell=True, stdin=subprocess.PIPE, pass_fds=[write])
    shell.wait()  # it is nobody's child from now on
    os.close(write)
    shell.communicate(b"\\n")
    os.read(ended, 1)
if __name__ == "__mp_main__":
    aiacc.init()  # as a script does that has no `if __name__ == "__main__":`
elif sys.argv[1:] == ["child"]:
    be()
else:
    more = os.environ["MORE"].split()
    if "before" in more:
        before()
    aiacc.init()
    program()
    program(AIACC_RANK="0", AIACC_SIZE="1")
    for method, call, code in (("fork", fork, 0), ("spawn", print, 1)):
        child = multiprocessing.get_context(method).Process(target=call)
        child.start()
        child.join()
        assert child.exitcode == code
    if "orphan" in more:
        orphan()
    hvd.barrier()
    aiacc.shutdown()
    if "after" in more:
        program()
"""


@pytest.mark.parametrize(
    ("launcher", "more"),
    [
        ("aiaccrun", "before orphan after"),
        ("torchrun", "orphan"),  # whose ranks have sessions of their own, as those of aiaccrun
        # MPICH's descriptor goes to no program: its rank ends what it began.
        pytest.param("mpirun", "", marks=pytest.mark.mpi),
        pytest.param("srun", "after", marks=pytest.mark.nightly),
        pytest.param("openmpi", "after", marks=[pytest.mark.mpi, pytest.mark.nightly]),
    ],
)
def test_what_a_rank_starts_is_not_that_rank(launcher, more, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(RANK_WITH_CHILDREN)
    command = launch_command(launcher, 2, [str(script)])
    done = run_program(command, env=rank_environment({"MORE": more}), merged=True, check=True)
    before, orphan, after = (what in more for what in ("before", "orphan", "after"))
    for rank in range(2):
        # The program, the fork and the worker that runs the script again.
        assert done.stdout.count(f"rank {rank} of 2 is process ") == 3 + before + orphan
        assert done.stdout.count(f"{rank} of 2\n") == after  # when the rank is none any more
    for text, times in {
        "set AIACC_RANK=0 and AIACC_SIZE=1": 2 + before + orphan,
        ", which this one has started, and which has inherited": before,
        'below `if __name__ == "__main__":`': 1,
        "0 of 1\n": 1,
    }.items():
        assert done.stdout.count(text) == 2 * times, text
