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


def test_one_at_a_time(address):
    first, second = Seat(address, ""), Seat(address, "")
    assert not second.is_taken()
    assert first.take()
    assert first.take()
    assert second.is_taken()
    assert not second.take()
    assert str(os.getpid()) in second.wait_for(Deadline(0.0))
    first.close()
    first.close()
    assert second.take()
    second.close()


def test_address_and_token_make_the_seat(address):
    seats = [Seat(address, ""), Seat(address, "secret"), Seat(f"{address}0", "")]
    assert all(one.take() for one in seats)
    for one in seats:
        one.close()


def test_what_is_kept_stays_with_the_process(address):
    first, second = Seat(address, ""), Seat(address, "")
    assert first.take()
    first.keep()
    first.close()
    assert second.is_taken()
    assert second.take(), "the same process has it"
    second.close()
    seat.release_all()
    assert not second.is_taken()


def test_a_wait_ends_when_the_seat_is_given_up(address):
    first, second = Seat(address, ""), Seat(address, "")
    assert first.take()
    outcome = []
    waiter = threading.Thread(target=lambda: outcome.append(second.wait_for(Deadline(PATIENT_S))))
    waiter.start()
    first.close()
    waiter.join()
    assert outcome == [""]
    assert not first.take()
    second.close()


def in_a_child(function):
    """Exit code of a fork that calls ``function``."""
    pid = os.fork()
    if pid == 0:
        os._exit(int(function()))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_rivals_are_other_processes(address):
    mine = Seat(address, "")
    assert mine.take()
    assert mine.rivals() == []
    Seat(address, "").wait_for(Deadline(0.0))
    assert mine.rivals() == [], "it is the same process"
    assert in_a_child(lambda: bool(Seat(address, "").wait_for(Deadline(0.0))))
    (rival,) = mine.rivals()
    assert rival.startswith("process ")
    assert mine.rivals() == []
    mine.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_who_was_refused_while_the_job_ran_is_named_at_its_end(address, caplog):
    mine = Seat(address, "")
    assert mine.take()
    mine.keep()
    waits = socket.socket(socket.AF_UNIX)
    with waits:
        waits.connect(mine._name)
        pid = os.fork()
        if pid == 0:
            seat._forget_all()  # it knows the name from the same process, which no rival does
            os._exit(int(bool(Seat(address, "").wait_for(Deadline(0.0)))))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        seat.release_all()
    (record,) = caplog.records
    assert f"another rank 0 came to its address and was refused: process {pid}" in record.message
    assert str(os.getpid()) not in record.message


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_a_fork_does_not_keep_the_seat(address):
    mine = Seat(address, "")
    assert mine.take()
    mine.keep()
    ready, release = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready[1], b"x")
        os.read(release[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    seat.release_all()
    assert mine.take(), "the child has a copy of the socket"
    mine.close()
    os.write(release[1], b"x")
    os.waitpid(pid, 0)
    for end in (*ready, *release):
        os.close(end)
