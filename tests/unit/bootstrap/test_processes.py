"""Processes of this host: which is rank 0, who else was told an address, and how they end."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest

from aiacc.bootstrap import processes, rivals, seat
from aiacc.bootstrap.provider import Deadline
from aiacc.bootstrap.seat import Seat
from tests.support.ranks import free_port, rank_environment

PATIENT_S = 30.0
MIB = 1 << 20

#: Has a child that was told the same, says which, and lives until its input ends.
WITH_A_WORKER = """
import subprocess, sys
idle = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
with subprocess.Popen(idle, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
    worker.stdout.readline()
    print(worker.pid, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def running(port, **changes):
    """Process ids of a process that was told the address, and of its worker."""
    env = {"AIACC_ADDR": f"127.0.0.1:{port}", "AIACC_RANK": "1", **changes}
    with subprocess.Popen(
        [sys.executable, "-c", WITH_A_WORKER],
        env=rank_environment(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process.pid, int(process.stdout.readline())


def found(port, *members):
    return {rival.pid for rival in rivals.find(("127.0.0.1", port), members)}


def test_a_process_for_the_same_address_that_is_no_member(monkeypatch):
    port = free_port()
    with running(port) as (rank, worker):
        assert found(port) == {rank, worker}
        (text,) = {str(r) for r in rivals.find(("127.0.0.1", port), []) if r.pid == rank}
        assert text.startswith(f"process {rank} (")
        assert rivals.process_space() == rivals.process_space() != ""
        for member in (rank, worker, os.getppid()):
            assert found(port, member) == set(), "it, or what has started it or was started by it"
        monkeypatch.setattr(rivals, "_TOGETHER_S", -1e9)
        assert found(port) == set(), "they are much older"


@pytest.mark.parametrize(
    "changes",
    [{"AIACC_TOKEN": "x"}, {"AIACC_RANK": ""}, {"AIACC_ADDR": "127.0.0.1:1"}, {"AIACC_ADDR": "x"}],
)
def test_who_was_told_something_else_is_no_rival(changes):
    port = free_port()
    with running(port, **changes):
        assert found(port) == set()


@pytest.fixture(params=["descriptor", "system call", "poll"])
def way(request, monkeypatch):
    """How it is seen that a process has ended."""
    if request.param == "system call":
        monkeypatch.delattr(os, "pidfd_open")
    elif request.param == "poll":
        monkeypatch.setattr(processes, "open_pidfd", Mock(side_effect=PermissionError))


@pytest.fixture
def child():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


@pytest.mark.usefixtures("way")
def test_the_end_of_a_process_is_waited_for_no_longer_than_told(child):
    processes.wait_for_end([child.pid], 0.0)
    assert child.poll() is None
    done = []

    def end():
        done.append(True)
        child.communicate()

    timer = threading.Timer(0.2, end)
    timer.start()
    processes.wait_for_end([child.pid], PATIENT_S)
    assert done
    timer.join()
    processes.wait_for_end([child.pid, child.pid], PATIENT_S)  # has ended


def test_no_descriptor_of_what_has_ended(child, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    child.communicate()
    with pytest.raises(ProcessLookupError):
        processes.open_pidfd(child.pid)


@pytest.fixture
def address():
    yield f"127.0.0.1:{free_port()}"
    seat.release_all()


@pytest.fixture
def seats(address):
    """Two that are the same, of which the first is taken."""
    first, second = Seat(address, ""), Seat(address, "")
    assert not second.is_taken()
    assert first.take()
    yield first, second
    first.close()
    second.close()


def test_one_at_a_time_for_an_address_and_a_token(seats, address):
    first, second = seats
    assert first.take()
    assert second.is_taken()
    assert not second.take()
    assert str(os.getpid()) in second.wait_for(Deadline(0.0))
    for other in (Seat(address, "secret"), Seat(f"{address}0", "")):
        assert other.take()
        other.close()
    first.close()
    first.close()
    assert second.take()


def test_what_is_kept_stays_with_the_process(seats):
    first, second = seats
    first.keep()
    first.close()
    assert second.is_taken()
    assert second.take(), "the same process has it"
    second.close()
    seat.release_all()
    assert not second.is_taken()


def test_a_wait_ends_when_the_seat_is_given_up(seats):
    first, second = seats
    outcome = []
    waiter = threading.Thread(target=lambda: outcome.append(second.wait_for(Deadline(PATIENT_S))))
    waiter.start()
    first.close()
    waiter.join()
    assert outcome == [""]
    assert not first.take()


def fork(function):
    """Process id of a child that ends with what ``function`` returns."""
    pid = os.fork()
    if pid == 0:
        os._exit(int(function()))
    return pid


def code_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_rivals_are_other_processes(seats, address):
    mine, _ = seats
    assert mine.rivals() == []
    Seat(address, "").wait_for(Deadline(0.0))
    assert mine.rivals() == [], "it is the same process"
    assert code_of(fork(lambda: bool(Seat(address, "").wait_for(Deadline(0.0))))) == 1
    (rival,) = mine.rivals()
    assert rival.startswith("process ")
    assert mine.rivals() == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_who_was_refused_while_the_job_ran_is_named_at_its_end(seats, address, caplog):
    mine, _ = seats
    mine.keep()

    def come():
        seat._forget_all()  # it knows the name from the same process, which no rival does
        return bool(Seat(address, "").wait_for(Deadline(0.0)))

    with socket.socket(socket.AF_UNIX) as waits:
        waits.connect(mine._name)
        pid = fork(come)
        assert code_of(pid) == 1
        seat.release_all()
    (record,) = caplog.records
    assert f"another rank 0 came to its address and was refused: process {pid}" in record.message
    assert str(os.getpid()) not in record.message


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_a_fork_does_not_keep_the_seat(seats):
    mine, _ = seats
    mine.keep()
    there, here = socket.socketpair()
    with there, here:
        pid = fork(lambda: there.send(b"ready") and there.recv(1) == b"")
        assert here.recv(5) == b"ready"
        seat.release_all()
        assert mine.take(), "the child has a copy of the socket"
        here.send(b"x")
        assert code_of(pid) == 0


@pytest.mark.parametrize(
    ("limit", "used", "stack", "text"),
    [
        (1000, 100, 8, ""),  # threads are refused for another reason
        (132, 100, 8, "limited to 132 MiB, of which 100 are in use (expected 33 MiB left"),
        (100, 120, 8, "limited to 100 MiB"),
        (600, 100, 512, "lower that of a stack (ulimit -s, 512 MiB)"),
    ],
)
def test_too_little_address_space_for_threads_is_told(limit, used, stack, text):
    found = processes.describe_lack(4, limit * MIB, used * MIB, stack * MIB)
    assert text in found
    assert bool(found) == bool(text)
