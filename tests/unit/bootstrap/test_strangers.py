"""Strangers at the rendezvous: they end nothing, and take neither time nor descriptors for long."""

import contextlib
import errno
import itertools
import json
import os
import socket
import struct
import threading

import pytest

from aiacc.bootstrap import frames, rendezvous_server
from tests.support.rendezvous import (
    PATIENT_S,
    SHORT_S,
    ByHand,
    Ranks,
    dial,
    gather,
    message,
    outcome,
    run_all,
)

pytestmark = pytest.mark.usefixtures("nothing_left_open")

BOTH = [b"from 0", b"from 1"]


def hello(body):
    return message(frames.Kind.HELLO, body if type(body) is bytes else json.dumps(body).encode())


def hello_of(**changes):
    """A hello of rank 1 with a proof that fits to nothing, and with fields of a stranger's."""
    fields = {"rank": 1, "size": 2, "generation": 0, "label": "x", "challenge": "00"} | changes
    return hello({"fields": json.dumps(fields), "proof": "00"})


#: What they send first.
STRANGERS = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "garbage": os.urandom(4096),
    "silence": b"",
    "truncated": hello(b"x" * 100)[:50],
    "huge": struct.pack("!4sHHI", b"AIRV", 1, frames.Kind.HELLO, 0xFFFFFFFF),
    "old version": message(frames.Kind.HELLO, b"abcd", version=99),
    "unknown kind": message(77, b""),
    "not json": hello(b"\xff\xfe{"),
    "deep json": hello(b"[" * 4000),
    "wrong types": hello({"fields": 3, "proof": []}),
    "number as challenge": hello_of(challenge=7),
    "lone surrogate as challenge": hello_of(challenge="\ud800"),
    "lone surrogate as label": hello_of(label="\ud800"),
    "list as label": hello_of(label=[1]),
    "number as fields": hello({"fields": 7, "proof": "00"}),
    "deep json as fields": hello({"fields": "[" * 3900, "proof": "00"}),
    "payload first": message(frames.Kind.PAYLOAD, b"\0\0\0\0abc"),
}


@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("stays", [True, False], ids=["stays", "leaves"])
def test_a_stranger_does_not_disturb_the_ranks(kind, stays, port):
    with Ranks(2) as ranks, contextlib.ExitStack() as stack:
        zero = ranks.start(gather, 0, 2, port)
        stranger = stack.enter_context(dial(port))
        stranger.sendall(STRANGERS[kind])
        if not stays:
            stranger.close()
        one = ranks.start(gather, 1, 2, port)
        assert outcome(zero) == outcome(one) == BOTH


def test_proper_hellos_with_wrong_fields_end_nothing(port):
    """The job has no token, so that the proof of each of them is right."""
    with Ranks(2) as ranks:
        zero = ranks.start(gather, 0, 2, port)
        for field, value in itertools.product(("challenge", "label"), (7, "\ud800")):
            with ByHand(port) as stranger:
                assert stranger.introduce(1, 2, **{field: value}).kind == frames.Kind.REFUSE
        one = ranks.start(gather, 1, 2, port)
        assert outcome(zero) == outcome(one) == BOTH


def test_a_silent_stranger_is_dropped_and_mentioned(port, monkeypatch):
    monkeypatch.setattr(rendezvous_server, "_HELLO_PATIENCE_S", 0.05)
    with Ranks(1) as ranks:
        zero = ranks.start(gather, 0, 2, port, timeout_s=1.0)
        with dial(port) as stranger:
            while stranger.recv(4096):
                pass
        assert "it did not say who it is" in outcome(zero)


def test_many_strangers_do_not_keep_a_rank_out(port, monkeypatch):
    monkeypatch.setattr(rendezvous_server, "_STRANGERS", 4)
    with Ranks(2) as ranks, contextlib.ExitStack() as stack:
        zero = ranks.start(gather, 0, 2, port)
        for _ in range(20):
            stack.enter_context(dial(port))
        one = ranks.start(gather, 1, 2, port)
        assert outcome(zero) == outcome(one) == BOTH


def scarce(monkeypatch, number, function, when=lambda: True):
    """Let sockets fail as the kernel says that there is no room, whenever ``when()`` is true."""
    owner = socket if function == "create_connection" else socket.socket
    genuine = getattr(owner, function)

    def fail(*args, **options):
        if when():
            raise OSError(number, os.strerror(number))
        return genuine(*args, **options)

    monkeypatch.setattr(owner, function, fail)


#: How the kernel says that there is no room for another socket, and what the error names then.
no_room = pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.EMFILE, "files and sockets open (its limit is"),
        (errno.ENFILE, "sysctl fs.file-max"),
        (errno.ENOBUFS, "no memory left for another socket"),
    ],
)


@no_room
def test_a_rank_0_without_descriptors_says_so_to_those_who_are_in(number, text, port, monkeypatch):
    genuine, someone_is_in = rendezvous_server.RendezvousServer._admit, threading.Event()

    def admit(*args):
        genuine(*args)
        someone_is_in.set()

    monkeypatch.setattr(rendezvous_server.RendezvousServer, "_admit", admit)
    scarce(monkeypatch, number, "accept", someone_is_in.is_set)
    with Ranks(3) as ranks:
        zero, one = (ranks.start(gather, rank, 3, port) for rank in (0, 1))
        assert someone_is_in.wait(PATIENT_S)
        two = ranks.start(gather, 2, 3, port, timeout_s=SHORT_S)
        for future in (zero, one):
            assert text in outcome(future)
        assert "rank 0 not reached" in outcome(two) or "no result" in outcome(two)


def test_descriptors_that_strangers_have_are_taken_from_them(port, monkeypatch):
    turn = itertools.count()
    scarce(monkeypatch, errno.EMFILE, "accept", lambda: next(turn) == 1)
    with Ranks(2) as ranks:
        zero = ranks.start(gather, 0, 2, port)
        with dial(port) as stranger:
            assert stranger.recv(1)  # it is in
            one = ranks.start(gather, 1, 2, port)
            assert outcome(zero) == outcome(one) == BOTH


@no_room
def test_a_rank_without_descriptors_says_so_at_once(number, text, port, monkeypatch):
    scarce(monkeypatch, number, "create_connection")
    (said,) = run_all([lambda: gather(1, 2, port)])
    assert text in said
