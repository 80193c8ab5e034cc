"""Which of several addresses of a host answers: over sockets, and in the exchange of all ranks."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiacc.bootstrap.look import look, settle
from aiacc.bootstrap.provider import Deadline
from aiacc.bootstrap.reach import Candidate, Evidence, Look, Presence
from aiacc.exceptions import BootstrapError


@pytest.fixture
def answering():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def refusing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
def mute():
    """A port whose queue is full, so that it answers as little as a host that is not there."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        opened.enter_context(socket.create_connection(listener.getsockname()))
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("ports", "patience_s", "expected"),
    [
        # The likeliest is enough; one that refuses is not waited for, a silent one is given up.
        (["answering", "mute"], 60.0, Look(["way 0"])),
        (["refusing", "answering"], 60.0, Look(["way 1"], ["way 0"])),
        (["mute", "answering"], 0.2, Look(["way 1"], ["way 0"])),
        (["mute", "refusing"], 0.2, Look()),
        ([], 60.0, Look()),
    ],
)
def test_which_of_several_addresses_answers(ports, patience_s, expected, request):
    ways = [
        (f"way {number}", "127.0.0.1", request.getfixturevalue(port))
        for number, port in enumerate(ports)
    ]
    assert look(ways, Deadline(patience_s)) == expected


class _Provider:
    """One rank of a job of threads; says `lie` instead of what it should."""

    def __init__(self, rank, barrier, rows, lie=None):
        self.rank, self._barrier, self._rows, self._lie = rank, barrier, rows, lie

    def all_gather(self, payload, *, timeout_s):
        self._rows[self.rank] = payload if self._lie is None else self._lie
        self._barrier.wait(timeout_s)
        return list(self._rows)


def _settle(presences, lie=None):
    barrier, rows = threading.Barrier(len(presences)), [b""] * len(presences)
    hosts = [f"host{rank}" for rank in range(len(presences))]

    def of_rank(rank):
        return settle(_Provider(rank, barrier, rows, lie), presences, hosts, timeout_s=30)

    with ThreadPoolExecutor(len(presences)) as threads:
        return list(threads.map(of_rank, range(len(presences))))


def test_all_ranks_decide_alike_from_what_one_has_found(monkeypatch):
    def found(ways, patience):
        assert [host for _, host, _ in ways] == ["10.1.0.2", "10.2.0.2"]
        assert patience.left_s() > 0
        return Look(["10.2.0.2"], ["10.1.0.2"])

    monkeypatch.setattr("aiacc.bootstrap.look.look", found)
    for reach in _settle(_hosts()):
        assert reach.seen_by(0) == ("10.2.0.1:0", "10.2.0.2:7")


def test_an_answer_that_cannot_be_read_is_an_error_of_all(monkeypatch):
    monkeypatch.setattr("aiacc.bootstrap.look.look", lambda ways, patience: Look())
    for lie in (b"", b"[]", b'{"silent": [1]}', b'{"loud": []}'):
        with pytest.raises(BootstrapError, match="install the same aiacc"):
            _settle(_hosts(), lie)


def _hosts():
    """Two hosts with two networks each; only the second has a listener."""
    return [
        Presence(
            f"stack{number}",
            7 if number == 2 else 0,
            [
                Candidate("nat0", f"10.1.0.{number}", 24, Evidence.DEFAULT),
                Candidate("eth0", f"10.2.0.{number}", 24),
            ],
        )
        for number in (1, 2)
    ]
