"""Bootstrap under the real launchers, without the runtime; and with what else they serve."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import aiacc
from aiacc import _core, mpi_library
from aiacc.bootstrap import select_provider
from aiacc.bootstrap.providers.slurm import step_port
from aiacc.bootstrap.records import Record
from aiacc.config import LauncherEnvironment, TorchrunEnvironment, launcher_environment
from aiacc.exceptions import BootstrapError
from tests.support import fake_srun
from tests.support.ranks import ROOT, free_port, mpirun, rank_environment, run_ranks

PATIENT_S = 50.0
SHORT_S = 0.5

LAUNCHERS = [
    pytest.param("explicit", "rendezvous", id="explicit"),
    pytest.param("mpirun", "pmi", id="mpirun", marks=pytest.mark.mpi),
    pytest.param("torchrun", "torchrun", id="torchrun"),
    pytest.param("srun", "slurm", id="srun"),
]


def open_descriptors():
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is gone by now
            found.append(str(entry.readlink()))
    return sorted(found)


def exchange(generations, rounds, *, environment=None, config=None, timeout_s=PATIENT_S):
    """Bootstrap ``generations`` times; name of the provider."""
    environment = environment or launcher_environment()
    config = config or _core.config()
    name = ""
    for generation in range(generations):
        provider = select_provider(environment, config)
        try:
            for n in range(rounds):
                mine = b"%d/%d/" % (generation, n) * (provider.rank * 40)
                got = provider.all_gather(mine, timeout_s=timeout_s)
                expected = [b"%d/%d/" % (generation, n) * (r * 40) for r in range(provider.size)]
                assert got == expected
        finally:
            provider.close()
        name = provider.name
    return name


def exchange_and_leave_nothing():
    name = exchange(1, 1)  # what stays for the life of the process is there after the first
    before, threads = open_descriptors(), threading.active_count()
    exchange(200, 2)
    assert open_descriptors() == before
    assert threading.active_count() == threads
    return name


@pytest.mark.parametrize(("launcher", "name"), LAUNCHERS)
@pytest.mark.parametrize("size", [2, 4])
def test_200_generations(launcher, name, size):
    assert (
        run_ranks(size, exchange_and_leave_nothing, launcher=launcher, timeout=90) == [name] * size
    )


def test_200_generations_over_a_shared_directory(tmp_path):
    env = {"AIACC_ADDR": "", "AIACC_RENDEZVOUS_FILE": str(tmp_path / "meet")}
    assert run_ranks(3, exchange_and_leave_nothing, env=env, timeout=90) == ["file"] * 3
    assert list((tmp_path / "meet").iterdir()) == []


def local_place():
    provider = select_provider(launcher_environment(), _core.config())
    exchange(1, 1)
    return provider.local_rank, provider.local_size


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun", "srun"])
def test_the_launcher_tells_the_local_rank(launcher):
    assert run_ranks(2, local_place, launcher=launcher) == [(0, 2), (1, 2)]


def attempt(timeout_s):
    """Text of the error, "" without one."""
    provider = select_provider(launcher_environment(), _core.config())
    try:
        assert provider.all_gather(b"x", timeout_s=timeout_s) == [b"x"] * provider.size
    except BootstrapError as error:
        return str(error)
    finally:
        provider.close()
    return ""


def rank_1_comes_late(late_attempts):
    """Text of the error on the ranks that did not wait long enough; all meet in the end."""
    rank = select_provider(launcher_environment(), _core.config()).rank
    if rank == 1:
        threading.Event().wait(4 * SHORT_S)  # until the others have given up: no event tells
        for _ in range(late_attempts - 1):
            attempt(SHORT_S)
        assert not attempt(PATIENT_S)
        return ""
    text = attempt(SHORT_S)
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
def test_a_missing_rank_is_named_and_a_later_attempt_works(launcher, name, late_attempts):
    texts = run_ranks(3, rank_1_comes_late, late_attempts, launcher=launcher)
    for text in (texts[0], texts[2]):
        assert name in text
        assert "rank" in text
    assert "1" in texts[0]


def with_mpi(order):
    """Initialise MPI in the same process, on the same PMI descriptor, at the given point."""
    for step in order.split():
        if step == "mpi":
            reason = mpi_library.load("", "mpich")
            assert not reason
            rank, size, _ = _core.mpi_initialize()
            environment = launcher_environment().mpi
            assert environment is not None
            assert (rank, size) == (environment.rank, environment.size)
        else:
            assert exchange(5, 2) == "pmi"


@pytest.mark.mpi
@pytest.mark.parametrize("order", ["exchange mpi exchange", "mpi exchange", "exchange mpi"])
def test_mpi_may_be_initialised_before_or_after(order):
    run_ranks(2, with_mpi, order, launcher="mpirun")


EXCHANGE = (
    "from tests.parallel.launch import test_launchers as t; print(t.exchange(3, 2), flush=True)"
)


def run_under_mpirun(*command, options=("-np", "2"), flavour="mpich"):
    return subprocess.run(
        [*mpirun(flavour), *options, *command],
        env=rank_environment({}),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )


LAST_WORDS = """
from tests.parallel.launch.test_launchers import *
path = sys.argv[1]
for step in sys.argv[2:]:
    if step == "exchange":
        exchange(2, 2)
    else:
        assert loaded_mpi(step).MPI_Init(None, None) == 0
rank = launcher_environment().mpi.rank
if rank == 1:  # reads until rank 0's process has ended, then lives on for a while
    with open(path) as pipe:
        pipe.read()
    threading.Event().wait(1.0)
    print("rank 1 lives")
else:
    os.open(path, os.O_WRONLY)
"""


def loaded_mpi(flavour):
    """Its library, as mpi4py loads it."""
    for path in mpi_library._candidates(flavour):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    raise AssertionError(f"no library of {flavour}")


@pytest.mark.mpi
@pytest.mark.parametrize(
    "steps", [["exchange"], ["exchange", "openmpi"], ["openmpi", "exchange"]], ids=" ".join
)
def test_a_rank_may_end_before_the_others(tmp_path, steps):
    # hydra kills the job when a process ends that has used PMI and did not say goodbye. Open MPI,
    # which is a job of one rank to itself here, does not say it.
    if "openmpi" in steps:
        mpirun("openmpi")
    os.mkfifo(tmp_path / "pipe")
    done = run_under_mpirun(sys.executable, "-c", LAST_WORDS, str(tmp_path / "pipe"), *steps)
    assert "rank 1 lives" in done.stdout
    assert done.returncode == 0, done.stdout


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


@pytest.mark.mpi
def test_mpirun_may_leave_the_survivors_of_a_rank_alone():
    options = ("-disable-auto-cleanup", "-np", "3")
    done = run_under_mpirun(sys.executable, "-c", SURVIVOR, options=options)
    for rank in (0, 1):
        assert re.search(rf"{rank} on mpi saw: .*rank 2\b", done.stdout), done.stdout


#: Ranks whose launcher does not learn that one dies: all shells stay until the first two ranks
#: have let go of their locks.
UNWATCHED = """
flock "$1/$PMI_RANK" "$2" -c "$3"; echo "$PMI_RANK ends"
flock "$1/0" true; flock "$1/1" true
"""


@pytest.mark.mpi
def test_survivors_end_without_the_rank_that_died(tmp_path):
    # They must not wait for it in MPI_Finalize.
    done = run_under_mpirun(
        "sh", "-c", UNWATCHED, "sh", str(tmp_path), sys.executable, SURVIVOR, options=("-np", "3")
    )
    for rank in (0, 1):
        assert re.search(rf"{rank} on mpi saw: .*rank 2\b", done.stdout), done.stdout
    # The first that ends without MPI_Finalize has mpirun end the other one.
    assert re.search("[01] ends", done.stdout), done.stdout


@pytest.mark.mpi
@pytest.mark.parametrize("goodbye", ["", "; os._exit(0)"])
def test_a_second_program_under_one_mpirun_ends_well_or_is_told(goodbye):
    # hydra kills a job in which a key is put twice; it also hangs up at the first goodbye.
    programs = [f"{sys.executable} -c 'import os; {EXCHANGE}{end}'" for end in (goodbye, "")]
    done = run_under_mpirun("sh", "-c", " && ".join(programs))
    if goodbye:
        # hydra may put one rank's word before another's line end.
        assert "".join(done.stdout.split()) == "pmi" * 4
    else:
        assert done.stdout.count("the connection to mpirun (PMI_FD=") == 2


@pytest.mark.mpi
def test_a_child_without_the_descriptor_is_told_so():
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {EXCHANGE!r}])"
    done = run_under_mpirun(sys.executable, "-c", start)
    assert done.stdout.count("expected the open descriptor that mpirun gave") == 2


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


def one_of_two_steps(job):
    """Four processes: the first two are step 1, the others step 2 of one job on one host."""
    number = int(os.environ.pop("AIACC_RANK"))
    for name in ("AIACC_SIZE", "AIACC_ADDR"):
        del os.environ[name]
    tasks = fake_srun.task_variables(2, "localhost", job, 1 + number // 2)
    return start_with(tasks[number % 2])


def test_steps_of_a_job_at_once_on_one_host():
    job = fake_srun.free_job(1)
    places = run_ranks(4, one_of_two_steps, job)
    assert places == [(0, 2, 0, 2), (1, 2, 1, 2)] * 2


def as_a_task(job):
    rank = int(os.environ.pop("AIACC_RANK"))
    for name in ("AIACC_SIZE", "AIACC_ADDR"):
        del os.environ[name]
    return start_with(fake_srun.task_variables(3, "localhost,127.0.0.1", job, 0)[rank])


def test_a_step_on_two_nodes():
    # The first has two tasks; both names mean this machine.
    places = run_ranks(3, as_a_task, fake_srun.free_job(0))
    assert places == [(0, 3, 0, 2), (1, 3, 1, 2), (2, 3, 0, 1)]


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": ""},
        {"SLURM_STEP_ID": "4294967291"},  # of a batch script
        {"SLURM_STEP_ID": "4294967290"},  # of an interactive shell
    ],
)
def test_python_in_a_batch_script_is_alone(changes):
    batch = fake_srun.task_variables(4, "localhost", 7, 0)[0] | changes
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
    rank, size = int(config["rank"]), int(config["size"])
    environment = TorchrunEnvironment(
        rank=rank,
        size=size,
        local_rank=-1,
        local_size=-1,
        master_addr="127.0.0.1",
        master_port=port,
        agent_store=agent_store,
        restart_count=0,
        run_id="",
    )
    unset = {**config, "rank": -1, "size": -1, "addr": ""}
    return LauncherEnvironment(torchrun=environment, mpi=None), unset


def share_the_port_with_torch(port, order):
    torch = pytest.importorskip("torch.distributed")
    environment, config = torch_environment(port, agent_store=False)
    place = environment.torchrun
    assert place is not None
    for step in order.split():
        if step == "exchange":
            name = exchange(3, 2, environment=environment, config=config)
            assert name == "torchrun"
        else:
            torch.init_process_group(
                "gloo",
                init_method=f"tcp://127.0.0.1:{port}",
                rank=place.rank,
                world_size=place.size,
            )
            torch.barrier()
            torch.destroy_process_group()


@pytest.mark.parametrize("order", ["exchange", "torch exchange torch", "exchange torch exchange"])
def test_rank_0_hosts_the_store_and_shares_it_with_torch(order):
    run_ranks(2, share_the_port_with_torch, free_port(), order)


def ignore_stale_entries(port):
    torch = pytest.importorskip("torch.distributed")
    environment, config = torch_environment(port, agent_store=True)
    place = environment.torchrun
    assert place is not None
    server = None
    if place.rank == 0:  # plays the agent, whose store has seen an earlier life of the job
        server = torch.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        nonces = ["old0", "old1"]
        for rank in range(2):
            for n in range(2):
                prefix = f"aiacc/0/0/{n}"
                stale = Record(rank, 2, 0, nonce=nonces[rank]).encode(b"stale")
                seen = f'{{"nonce": "{nonces[rank]}", "seen": ["old0", "old1"]}}'
                server.set(f"{prefix}/entry/{rank}", stale)
                server.set(f"{prefix}/seen/{rank}", seen)
        server.set("earlier life", "over")
    else:
        torch.TCPStore("127.0.0.1", port, wait_for_workers=False).wait(["earlier life"])
    exchange(2, 2, environment=environment, config=config)
    if server is not None:
        server.wait(["finished"])
    else:
        torch.TCPStore("127.0.0.1", port, wait_for_workers=False).set("finished", "")


def test_a_store_with_entries_of_an_earlier_life():
    run_ranks(2, ignore_stale_entries, free_port())


def wrong_port(port):
    environment, config = torch_environment(port, agent_store=False)
    with pytest.raises(BootstrapError) as raised:
        exchange(1, 1, environment=environment, config=config, timeout_s=2.0)
    return str(raised.value)


def test_the_port_of_the_store_is_taken():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        texts = run_ranks(2, wrong_port, port)
        assert f"the port is taken by process {os.getpid()}" in texts[0]
        assert f"what listens at 127.0.0.1:{port} did not answer rank 1" in texts[1]
