"""Bootstrap under every launcher, without the runtime; and with what else launchers serve."""

import contextlib
import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

import aiacc
import aiacc.array as hvd
from aiacc import _core
from aiacc.bootstrap import select_provider
from aiacc.bootstrap.providers.slurm import step_port
from aiacc.config import launcher_environment
from aiacc.exceptions import BootstrapError
from tests.parallel.launch.helpers import (
    PATIENT_S,
    SHORT_S,
    attempt,
    exchange,
    pipes,
    tell,
    wait_for,
)
from tests.support import fake_srun, footprint
from tests.support.programs import run_program
from tests.support.ranks import launch_command, rank_environment, run_ranks

#: Provider that each one gets, and the attempts of a rank that misses the others' first one, if one
#: does: the rendezvous takes its first for their second.
LAUNCHERS = [
    pytest.param("explicit", "rendezvous", 1, id="explicit"),
    pytest.param("mpirun", "pmi", 2, id="mpirun", marks=pytest.mark.mpi),
    pytest.param("torchrun", "torchrun", 2, id="torchrun"),
    pytest.param("srun", "slurm", 0, id="srun"),
    pytest.param("explicit", "file", 0, id="shared directory"),
]
OFTEN = [20, pytest.param(200, marks=pytest.mark.nightly)]


def come_late(late_attempts, folder):
    """Rank 1 comes when the others have given up. Text of their error; all meet in the end."""
    with contextlib.closing(select_provider(launcher_environment(), _core.config())) as provider:
        rank = provider.rank
    text = ""
    if rank == 1:
        for other in Path(folder).iterdir():
            wait_for(other)
        for _ in range(late_attempts - 1):
            attempt(SHORT_S)
    else:
        text = attempt(SHORT_S)
        tell(f"{folder}/{rank}")
    assert not attempt(PATIENT_S)
    return text


def exchange_and_leave_nothing(generations):
    name = exchange(1, 1)  # what stays for the life of the process is there after the first
    before, threads = sorted(footprint.descriptors().values()), threading.active_count()
    exchange(generations, 2)
    assert sorted(footprint.descriptors().values()) == before
    assert threading.active_count() == threads
    return name


def who_am_i():
    with pytest.raises(ValueError, match=r"^aiacc has not been initialized; use hvd\.init\(\)\.$"):
        hvd.rank()
    with pytest.raises(aiacc.CollectiveError):
        hvd.allreduce(np.ones(1))
    assert not hvd.is_initialized()
    hvd.init()
    assert hvd.is_initialized()
    everyone = hvd.global_process_set
    assert everyone.ranks == list(range(hvd.size()))
    assert (everyone.rank(), everyone.size(), everyone.included()) == (hvd.rank(), hvd.size(), True)
    of_host = (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
    answer = (hvd.rank(), hvd.size(), *of_host)
    hvd.shutdown()
    assert everyone.ranks is None
    return answer


def meet(late_attempts, folder, generations):
    text = come_late(late_attempts, folder) if late_attempts else ""
    return text, exchange_and_leave_nothing(generations), who_am_i()


def place_of(rank, hosts):
    """What `who_am_i` says where rank r is on host ``hosts[r]``."""
    local = hosts[:rank].count(hosts[rank])
    alike = [host for host in sorted(set(hosts)) if hosts.count(host) > local]
    of_host = (local, hosts.count(hosts[rank]), alike.index(hosts[rank]), len(alike))
    return (rank, len(hosts), *of_host)


@pytest.mark.parametrize(("launcher", "name", "late_attempts"), LAUNCHERS)
@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("generations", OFTEN)
def test_ranks_meet_often_and_leave_nothing_also_after_one_was_missing(
    launcher, name, late_attempts, size, generations, tmp_path
):
    meeting, waiting = tmp_path / "meeting", tmp_path / "waiting"
    waiting.mkdir()
    folder = pipes(waiting, *(str(rank) for rank in range(size) if rank != 1))
    env = {
        "file": {"AIACC_ADDR": "", "AIACC_RENDEZVOUS_FILE": str(meeting)},
        "slurm": {"SLURM_NODELIST": "localhost,127.0.0.1"},  # both mean this machine
    }.get(name, {})
    hosts = "aabb"[:size] if name == "slurm" else "a" * size
    found = run_ranks(size, meet, late_attempts, folder, generations, launcher=launcher, env=env)
    texts, names, places = zip(*found, strict=True)
    assert names == (name,) * size
    assert places == tuple(place_of(rank, hosts) for rank in range(size))
    for text in texts[:1] + texts[2:] if late_attempts else ():
        assert name in text
        assert "rank" in text
    assert "1" in texts[0] or not late_attempts
    assert name != "file" or list(meeting.iterdir()) == []


@pytest.mark.parametrize(("launcher", "size"), [("aiaccrun", 2), ("python", 1)])
def test_ranks_and_sizes(launcher, size):
    answers = run_ranks(size, who_am_i, launcher=launcher)
    assert answers == [place_of(rank, "a" * size) for rank in range(size)]


PLACE = """
import aiacc
aiacc.init()
print(f"{aiacc.rank()} {aiacc.size()}\\n", end="")
aiacc.shutdown()
"""


@pytest.mark.parametrize(
    ("launcher", "left"),
    [
        ("srun", "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=1"),
        ("srun", "PMI_RANK=0 PMI_SIZE=1"),
        pytest.param("srun", "PMI_RANK=1 PMI_SIZE=4 PMI_FD=3", marks=pytest.mark.nightly),
        pytest.param(
            "mpirun", "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", marks=pytest.mark.mpi
        ),
    ],
)
def test_what_other_jobs_have_left_divides_no_job(launcher, left):
    variables = dict(variable.split("=") for variable in left.split())
    command = launch_command(launcher, 2, ["-c", PLACE])
    done = run_program(command, env=rank_environment(variables), check=True)
    assert sorted(done.stdout.splitlines()) == ["0 2", "1 2"]
    assert left.split()[0] in done.stderr
    assert "unset what is left of another job" in done.stderr


def start_with(variables):
    """As a task of Slurm's; text of the error, or what `init` has made of it."""
    os.environ.update(variables)
    try:
        aiacc.init()
    except BootstrapError as error:
        return str(error)
    place = (aiacc.rank(), aiacc.size(), aiacc.local_rank(), aiacc.local_size())
    aiacc.shutdown()
    return place


def test_a_shell_of_slurm_is_alone_and_a_task_is_told_that_its_port_is_taken():
    job = fake_srun.free_job(0)
    task = fake_srun.task_variables(2, "localhost", job, 0)[0]
    shell = task | {"SLURM_STEP_ID": "4294967291"}  # of a batch script
    assert run_ranks(1, start_with, shell, launcher="python") == [(0, 1, 0, 1)]
    with socket.create_server(("127.0.0.1", step_port(job, 0))):
        (text,) = run_ranks(1, start_with, task, launcher="python")
    assert f"cannot listen on 127.0.0.1:{step_port(job, 0)}: the port is taken by process" in text
    assert "AIACC_ADDR=host:port on all of them sets another" in text
