"""One process of a host is rank 0 at an address."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from aiacc.bootstrap import seat
from aiacc.bootstrap.provider import Deadline
from aiacc.bootstrap.seat import Seat
from tests.support.ranks import free_port

PATIENT_S = 20.0


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
