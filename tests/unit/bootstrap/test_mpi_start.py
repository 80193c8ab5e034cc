"""How the ranks of a job meet in MPI, what they are told if they cannot, and how PMIx ends."""

import contextlib
import select
import socket
import subprocess
import sys
import threading
import time
import warnings
from unittest.mock import Mock

import pytest

from aiacc import _core
from aiacc.bootstrap import agree
from aiacc.bootstrap.job_plan import MPI_ENGINES
from aiacc.bootstrap.mpi_start import meet_in_mpi
from aiacc.bootstrap.providers import pmix_client
from aiacc.exceptions import BootstrapError, EngineError
from tests.unit.bootstrap.rows import ENGINES, job

WITH_ALL = {**ENGINES, "nccl": "", **dict.fromkeys(MPI_ENGINES, "")}
OPEN_MPI = "Open MPI v4.1.4"


class Job:
    """Stands for MPI and the other ranks, as rank 0 of them sees them."""

    def __init__(self, monkeypatch, hosts="aabb", **changes):
        self.table = job(hosts, launcher="pmix", engines=WITH_ALL, **changes)
        self.rank = 0
        self.size = len(hosts)
        self.seen = (0, self.size)
        self.reserved = []
        self.answers = {}
        monkeypatch.setattr(_core, "mpi_initialize", self._initialize)
        monkeypatch.setattr(_core, "mpi_reserve", self.reserved.append)

    def _initialize(self, lanes, timeout_s):
        self.lanes = lanes
        return (*self.seen, OPEN_MPI)

    def all_gather(self, payload, *, timeout_s):
        return [payload, *(self.answers.get(rank, b"") for rank in range(1, self.size))]

    def meet(self, *, mpirun=True):
        return meet_in_mpi(self, agree(self.table), self.table, timeout_s=1.0, mpirun=mpirun)


def test_a_job_without_mpi_does_not_start_it(monkeypatch):
    mpi = Job(monkeypatch)
    monkeypatch.setattr(_core, "mpi_initialize", None)
    assert mpi.meet().engine == agree(mpi.table).engine == "hierarchical"


@pytest.mark.parametrize(
    ("engine", "gpu_engine", "lanes"),
    [
        ("hierarchical-mpi", "nccl", 4),
        ("hierarchical-mpi", "hierarchical-mpi", 4),
        # Nothing but this step would tell what the ranks send from what an earlier job left.
        ("hierarchical", "hierarchical-mpi", 0),
    ],
)
def test_all_ranks_meet_before_the_engines_do(monkeypatch, engine, gpu_engine, lanes):
    mpi = Job(monkeypatch, engine=engine, gpu_engine=gpu_engine, fabrics=["mlx5_0"])
    plan = mpi.meet()
    assert (plan.engine, plan.gpu_engine) == (engine, gpu_engine)
    assert (mpi.lanes, mpi.reserved) == (4, [lanes])


@pytest.mark.parametrize(("rank", "fabrics", "times"), [(0, [], 1), (1, [], 0), (0, ["efa_0"], 0)])
def test_an_mpi_with_one_tcp_flow_is_told_once_not_on_a_fabric(monkeypatch, rank, fabrics, times):
    mpi = Job(monkeypatch, engine="mpi", fabrics=fabrics)
    mpi.rank = rank
    mpi.seen = (rank, mpi.size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mpi.meet()
    assert ["one TCP connection" in str(warning.message) for warning in caught] == [True] * times


@pytest.mark.parametrize(
    ("mpirun", "remedy"),
    [
        (True, "set AIACC_MPI_LIBRARY to the library of the mpirun that is used"),
        (False, "no mpirun started this process: start the job by mpirun, or by `aiaccrun --mpi`"),
    ],
)
@pytest.mark.parametrize("variable", ["AIACC_ENGINE", "AIACC_GPU_ENGINE"])
def test_an_mpi_that_knows_nothing_of_the_others(monkeypatch, mpirun, remedy, variable):
    mpi = Job(monkeypatch, **{variable.removeprefix("AIACC_").lower(): "hierarchical-mpi"})
    mpi.seen = (0, 1)
    with pytest.raises(BootstrapError) as caught:
        mpi.meet(mpirun=mpirun)
    said = str(caught.value)
    assert f"rank 0: {OPEN_MPI} says rank 0 of 1, the job says rank 0 of 4; {remedy}" in said
    assert f"another {variable}" in said


def test_reasons_of_many_ranks_are_counted(monkeypatch):
    mpi = Job(monkeypatch, hosts="a" * 100 + "b" * 100, engine="mpi", fabrics=["efa_0"])
    mpi.answers = {rank: f"{OPEN_MPI} says rank 0 of 1, not {rank}".encode() for rank in (2, 3)}
    with pytest.raises(BootstrapError, match=r"rank 2: .*not 2; rank 3: .*not 3 \(expected"):
        mpi.meet()
    mpi.answers = {rank: f"{OPEN_MPI} says rank 0 of 1, not {rank}".encode() for rank in range(200)}
    with pytest.raises(BootstrapError, match=r"not 3; and 196 more ranks \(expected") as caught:
        mpi.meet()
    assert len(str(caught.value)) < 500


def test_a_rank_without_memory_leaves_a_job_that_did_not_ask_for_mpi_to_tcp(monkeypatch):
    mpi = Job(monkeypatch, fabrics=["mlx5_0"])
    assert agree(mpi.table).engine == "hierarchical-mpi"

    refuse = Mock(side_effect=EngineError("no memory for lanes"))
    monkeypatch.setattr(_core, "mpi_reserve", refuse)
    plan = mpi.meet()
    assert plan.engine == "hierarchical"
    assert "rank 0: no memory for lanes" in plan.engine_reason


PATIENT_MS = 30_000


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        yield client, stack.enter_context(server.accept()[0])


def is_readable(connection, wait_ms):
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(wait_ms))


def test_what_is_held_becomes_readable_later(ends, monkeypatch):
    client, server = ends
    later = threading.Event()
    look_s = pmix_client._LOOK_S
    monkeypatch.setattr(time, "sleep", lambda s: later.wait(None if s > look_s else 0))
    thread = pmix_client.hold(client)
    server.sendall(b"answer")
    assert not is_readable(client, 100)
    later.set()
    thread.join()
    assert is_readable(client, PATIENT_MS)


def test_bytes_that_come_meanwhile_are_held_as_long(ends, monkeypatch):
    client, server = ends
    sleeps = []

    def sleep(seconds):
        if seconds > pmix_client._LOOK_S:
            sleeps.append(seconds)
            if len(sleeps) == 1:
                server.sendall(b"answer")
                while len(client.recv(99, socket.MSG_PEEK | socket.MSG_DONTWAIT)) == len(b"event"):
                    pass

    server.sendall(b"event")
    monkeypatch.setattr(time, "sleep", sleep)
    pmix_client.hold(client).join()
    assert len(sleeps) == 2
    assert is_readable(client, PATIENT_MS)


@pytest.mark.parametrize("why", ["no answer", "no thread"])
def test_it_is_released_without_an_answer_or_a_thread(ends, monkeypatch, why):
    client, server = ends
    if why == "no answer":
        monkeypatch.setattr(pmix_client, "_LAST_ANSWER_S", 0.0)
        pmix_client.hold(client).join()
    else:
        monkeypatch.setattr(
            threading.Thread, "start", Mock(side_effect=RuntimeError("no new thread"))
        )
        pmix_client.hold(client)
    server.sendall(b"answer")
    assert is_readable(client, PATIENT_MS)


#: Prints how many bytes make its only connection readable.
HOLDING = """
import socket, sys
from aiacc.bootstrap.providers import pmix_client
host, port = sys.argv[1:]
connection = socket.create_connection((host, int(port)))
pmix_client.hold_last_answer()
print(connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))
"""


def test_the_connection_of_a_process_is_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = [str(part) for part in server.getsockname()]
        shown = subprocess.check_output([sys.executable, "-c", HOLDING, *address])
    assert int(shown) == pmix_client._MORE_THAN_AN_ANSWER
