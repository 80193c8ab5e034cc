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


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_one_of_several_at_once_is_told(method):
    (texts,) = run_ranks(1, start_children, method, True, launcher="python")
    (text,) = texts
    assert "are each a job of one rank" in text
    assert "AIACC_ADDR=127.0.0.1:<a free port>" in text


@pytest.mark.parametrize(
    ("at_once", "settings"),
    [
        pytest.param(False, {}, id="one after the other"),
        pytest.param(True, {"AIACC_RANK": "0", "AIACC_SIZE": "1"}, id="asked to be alone"),
    ],
)
def test_nobody_else_is_told(at_once, settings):
    texts = run_ranks(1, start_children, "fork", at_once, launcher="python", env=settings)
    assert texts == [[]]


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


RANK_WITH_CHILDREN = """
import multiprocessing, os, subprocess, sys
import aiacc, aiacc.array as hvd
def child():
    aiacc.shutdown()  # of what a fork has inherited
    try:
        aiacc.init()
    except aiacc.BootstrapError as error:
        print(f"{error}\\n", end="", flush=True)
        return
    print(f"{aiacc.rank()} of {aiacc.size()}\\n", end="", flush=True)
    aiacc.shutdown()
def program(**changes):
    subprocess.run([sys.executable, __file__, "child"], env={**os.environ, **changes}, check=True)
def orphan():
    ended, write = os.pipe()
    line = f"exec 3<&0; (read go <&3; exec {sys.executable} {__file__} child) &"
    shell = subprocess.Popen(line, shell=True, stdin=subprocess.PIPE, pass_fds=[write])
    shell.wait()  # it is nobody's child from now on
    os.close(write)
    shell.communicate(b"\\n")
    os.read(ended, 1)
if sys.argv[1:] == ["child"]:
    child()
elif __name__ == "__main__":
    aiacc.init()
    program()
    program(AIACC_RANK="0", AIACC_SIZE="1")
    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    forked.join()
    if os.environ["ORPHAN"]:
        orphan()
    hvd.barrier()
    aiacc.shutdown()
    if os.environ["AFTERWARDS"]:
        program()
"""
UNGUARDED = """
import multiprocessing, sys
import aiacc
aiacc.init()
worker = multiprocessing.get_context("spawn").Process(target=print)
worker.start()
worker.join()
assert worker.exitcode == 1
"""
GROUP_OF_CHILDREN = """
import subprocess, sys
import aiacc, aiacc.torch as hvd
import torch.distributed as dist
if sys.argv[1:] == ["child"]:
    try:
        dist.init_process_group("aiacc")
    except aiacc.BootstrapError as error:
        print(f"{error}\\n", end="", flush=True)
    dist.init_process_group("aiacc", store=dist.HashStore(), rank=0, world_size=1)
    print(f"{hvd.rank()} of {hvd.size()}\\n", end="", flush=True)
    dist.destroy_process_group()
else:
    hvd.init()
    subprocess.run([sys.executable, __file__, "child"], check=True)
    hvd.barrier()
"""
CHILD_BEFORE = """
import subprocess, sys
import aiacc
if sys.argv[1:] == ["child"]:
    aiacc.init()
    print("up", flush=True)
    sys.exit(bool(sys.stdin.read()))
command = [sys.executable, __file__, "child"]
with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
    assert child.stdout.readline() == b"up\\n"
    try:
        aiacc.init()
    except aiacc.BootstrapError as error:
        print(f"{error}\\n", end="", flush=True)
"""
LAUNCHERS = [
    "aiaccrun",
    "torchrun",
    pytest.param("mpirun", marks=pytest.mark.mpi),
    pytest.param("srun", marks=pytest.mark.nightly),
    pytest.param("openmpi", marks=[pytest.mark.mpi, pytest.mark.nightly]),
]


def run_script(launcher, folder, text, **changes):
    """What two ranks of a script print, as sorted lines."""
    script = folder / "train.py"
    script.write_text(text)
    command = launch_command(launcher, 2, [str(script)])
    return run_program(command, env=rank_environment(changes), merged=True, check=True).stdout


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_a_rank_starts_is_not_that_rank(launcher, tmp_path):
    # MPICH's descriptor goes to no program: its rank ends what it began.
    afterwards = "" if launcher == "mpirun" else "1"
    orphan = "1" if launcher in ("aiaccrun", "torchrun") else ""  # each rank has a session
    variables = {"AFTERWARDS": afterwards, "ORPHAN": orphan}
    said = run_script(launcher, tmp_path, RANK_WITH_CHILDREN, **variables)
    told = 2 + bool(orphan)  # the program, the fork, the orphan
    for rank in range(2):
        assert said.count(f"rank {rank} of 2 is process ") == told
        assert said.count(f"{rank} of 2\n") == bool(afterwards)  # when the rank is none any more
    assert said.count("set AIACC_RANK=0 and AIACC_SIZE=1") == 2 * told
    assert said.count("0 of 1\n") == 2


@pytest.mark.parametrize(
    ("launcher", "script", "text"),
    [
        ("aiaccrun", GROUP_OF_CHILDREN, "set AIACC_RANK=0 and AIACC_SIZE=1"),
        ("torchrun", GROUP_OF_CHILDREN, "store=torch.distributed.HashStore(), rank=0 and world"),
        ("aiaccrun", CHILD_BEFORE, ", which this one has started, and which has inherited"),
        ("torchrun", CHILD_BEFORE, ", which this one has started, and which has inherited"),
    ],
)
def test_nor_is_it_in_a_group_of_torch_or_before_the_rank(launcher, script, text, tmp_path):
    said = run_script(launcher, tmp_path, script)
    for rank in range(2):
        assert said.count(f"rank {rank} of 2 is process ") == 1
    assert said.count(text) == 2
    assert said.count("0 of 1\n") == (2 if script is GROUP_OF_CHILDREN else 0)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_worker_that_runs_the_script_of_its_rank_again(launcher, tmp_path):
    said = run_script(launcher, tmp_path, UNGUARDED)
    for rank in range(2):
        assert said.count(f"rank {rank} of 2 is process ") == 1
    assert said.count('below `if __name__ == "__main__":`') == 2
