"""Bootstrap under every launcher, without the runtime; and with what else launchers serve."""

import os
import socket
import threading

import pytest

import aiacc
from aiacc import _core
from aiacc.bootstrap import select_provider
from aiacc.bootstrap.providers.slurm import step_port
from aiacc.bootstrap.records import Record
from aiacc.config import LauncherEnvironment, TorchrunEnvironment, launcher_environment
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
from tests.support.jobs import on_ranks
from tests.support.programs import run_program
from tests.support.ranks import launch_command, rank_environment, run_ranks

LAUNCHERS = [
    pytest.param("explicit", "rendezvous", id="explicit"),
    pytest.param("mpirun", "pmi", id="mpirun", marks=pytest.mark.mpi),
    pytest.param("torchrun", "torchrun", id="torchrun"),
    pytest.param("srun", "slurm", id="srun"),
    pytest.param("explicit", "file", id="shared directory"),
]
OFTEN = [20, pytest.param(200, marks=pytest.mark.nightly)]


def exchange_and_leave_nothing(generations):
    name = exchange(1, 1)  # what stays for the life of the process is there after the first
    before, threads = sorted(footprint.descriptors().values()), threading.active_count()
    exchange(generations, 2)
    assert sorted(footprint.descriptors().values()) == before
    assert threading.active_count() == threads
    return name


@pytest.mark.parametrize(("launcher", "name"), LAUNCHERS)
@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("generations", OFTEN)
def test_many_generations_leave_nothing(launcher, name, size, generations, tmp_path):
    meeting = tmp_path / "meeting"
    env = {"AIACC_ADDR": "", "AIACC_RENDEZVOUS_FILE": str(meeting)} if name == "file" else {}
    names = run_ranks(size, exchange_and_leave_nothing, generations, launcher=launcher, env=env)
    assert names == [name] * size
    assert name != "file" or list(meeting.iterdir()) == []


def rank_1_comes_late(late_attempts, folder):
    """Text of the error on the ranks that did not wait long enough; all meet in the end."""
    rank = select_provider(launcher_environment(), _core.config()).rank
    text = ""
    if rank == 1:
        for other in (0, 2):
            wait_for(f"{folder}/{other}")
        for _ in range(late_attempts - 1):
            attempt(SHORT_S)
    else:
        text = attempt(SHORT_S)
        tell(f"{folder}/{rank}")
    assert not attempt(PATIENT_S)
    return text


@pytest.mark.parametrize(
    ("launcher", "name", "late_attempts"),
    [
        # The rendezvous takes the late rank's first attempt and the others' second for the same.
        pytest.param("explicit", "rendezvous", 1, id="explicit"),
        pytest.param("mpirun", "pmi", 2, id="mpirun", marks=pytest.mark.mpi),
        pytest.param("torchrun", "torchrun", 2, id="torchrun"),
    ],
)
def test_a_missing_rank_is_named_and_a_later_attempt_works(launcher, name, late_attempts, tmp_path):
    folder = pipes(tmp_path, "0", "2")
    texts = run_ranks(3, rank_1_comes_late, late_attempts, folder, launcher=launcher)
    for text in (texts[0], texts[2]):
        assert name in text
        assert "rank" in text
    assert "1" in texts[0]


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


# Slurm -------------------------------------------------------------------------------------------


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


def as_task(job, steps, tasks, nodes):
    """Rank by rank the tasks of one step after the other."""
    number = int(os.environ.pop("AIACC_RANK"))
    for name in ("AIACC_SIZE", "AIACC_ADDR"):
        del os.environ[name]
    step, task = divmod(number, tasks)
    return start_with(fake_srun.task_variables(tasks, nodes, job, steps[step])[task])


@pytest.mark.parametrize(
    ("steps", "tasks", "nodes", "places"),
    [
        ((1, 2), 2, "localhost", [(0, 2, 0, 2), (1, 2, 1, 2)] * 2),
        # The first node has two tasks; both names mean this machine.
        ((0,), 3, "localhost,127.0.0.1", [(0, 3, 0, 2), (1, 3, 1, 2), (2, 3, 0, 1)]),
    ],
    ids=["two at once", "on two nodes"],
)
def test_steps_of_slurm(steps, tasks, nodes, places):
    job = fake_srun.free_job(steps[0])
    assert run_ranks(len(places), as_task, job, steps, tasks, nodes) == places


def test_python_in_a_batch_script_is_alone():
    batch = fake_srun.task_variables(4, "localhost", 7, 0)[0] | {"SLURM_STEP_ID": "4294967291"}
    assert run_ranks(1, start_with, batch, launcher="python") == [(0, 1, 0, 1)]


def test_the_port_of_a_step_is_taken():
    job = fake_srun.free_job(0)
    tasks = fake_srun.task_variables(2, "localhost", job, 0)
    with socket.create_server(("127.0.0.1", step_port(job, 0))):
        (text,) = run_ranks(1, start_with, tasks[0], launcher="python")
    assert f"cannot listen on 127.0.0.1:{step_port(job, 0)}: the port is taken by process" in text
    assert "AIACC_ADDR=host:port on all of them sets another" in text


# torch -------------------------------------------------------------------------------------------


def torch_environment(port, *, agent_store):
    """As if RANK, WORLD_SIZE and MASTER_* had been set by hand, or by an agent."""
    config = dict(_core.config())
    environment = TorchrunEnvironment(
        rank=int(config["rank"]),
        size=int(config["size"]),
        local_rank=-1,
        local_size=-1,
        master_addr="127.0.0.1",
        master_port=port,
        agent_store=agent_store,
        restart_count=0,
        run_id="",
    )
    unset = {**config, "rank": -1, "size": -1, "addr": ""}
    return {"environment": LauncherEnvironment(torchrun=environment, mpi=None), "config": unset}


@pytest.mark.parametrize("order", ["exchange", "torch exchange torch", "exchange torch exchange"])
@on_ranks(2, starts=False)
def test_rank_0_hosts_the_store_and_shares_it_with_torch(port, order):
    torch = pytest.importorskip("torch.distributed")
    told = torch_environment(port, agent_store=False)
    place = told["environment"].torchrun
    for step in order.split():
        if step == "exchange":
            assert exchange(3, 2, **told) == "torchrun"
        else:
            method = f"tcp://127.0.0.1:{port}"
            torch.init_process_group(
                "gloo", init_method=method, rank=place.rank, world_size=place.size
            )
            torch.barrier()
            torch.destroy_process_group()


@on_ranks(2, starts=False)
def test_a_store_with_entries_of_an_earlier_life(port):
    torch = pytest.importorskip("torch.distributed")
    told = torch_environment(port, agent_store=True)
    rank = told["environment"].torchrun.rank
    # Rank 0 plays the agent, whose store has seen an earlier life of the job.
    store = torch.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        for stale in range(2):
            entry = Record(stale, 2, 0, nonce=f"old{stale}").encode(b"stale")
            seen = f'{{"nonce": "old{stale}", "seen": ["old0", "old1"]}}'
            for n in range(2):
                store.set(f"aiacc/0/0/{n}/entry/{stale}", entry)
                store.set(f"aiacc/0/0/{n}/seen/{stale}", seen)
        store.set("earlier life", "over")
    store.wait(["earlier life"])
    exchange(2, 2, **told)
    if rank == 0:  # with it ends the store
        store.wait(["finished"])
    else:
        store.set("finished", "")


def wrong_port(port):
    with pytest.raises(BootstrapError) as raised:
        exchange(1, 1, **torch_environment(port, agent_store=False), timeout_s=2.0)
    return str(raised.value)


def test_the_port_of_the_store_is_taken():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        texts = run_ranks(2, wrong_port, port)
        assert f"the port is taken by process {os.getpid()}" in texts[0]
        assert f"what listens at 127.0.0.1:{port} did not answer rank 1" in texts[1]
