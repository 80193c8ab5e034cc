"""The rendezvous at an address, with ranks as threads: every way in which it must fail clearly.

Strangers end nothing, and take neither time nor descriptors for long.
"""

import contextlib
import errno
import itertools
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading

import pytest

from aiacc.bootstrap import frames, rendezvous_server, rivals
from aiacc.exceptions import BootstrapError
from tests.support.programs import run_program
from tests.support.rendezvous import (
    ENOUGH_S,
    PATIENT_S,
    SHORT_S,
    ByHand,
    Ranks,
    dial,
    exchange,
    gather,
    message,
    outcome,
    provider,
    run_all,
)

pytestmark = pytest.mark.usefixtures("nothing_left_open")

BOTH = [b"from 0", b"from 1"]


@contextlib.contextmanager
def undisturbed(port, token=""):
    """Rank 0 of two gathers; whatever happens here, its job is whole once rank 1 comes."""
    with Ranks(2) as ranks:
        zero = ranks.submit(gather, 0, 2, port, token=token)
        yield
        one = ranks.submit(gather, 1, 2, port, token=token)
        assert outcome(zero) == outcome(one) == BOTH


def test_a_restarted_rank_catches_up_with_the_generation_of_the_others(port):
    def body(rank, generation):
        end = provider(rank, 3, port, generation=generation)
        exchange(end, b"")
        return end.generation

    results = run_all([lambda: body(0, 5), lambda: body(1, 0), lambda: body(2, 5)])
    assert results == [5, 5, 5]


def test_a_client_whose_time_is_over_ends_the_exchange_for_all(port):
    calls = [lambda: gather(0, 3, port), lambda: gather(1, 3, port, timeout_s=ENOUGH_S)]
    for text in run_all(calls):
        assert "rank 2 of 3 did not come within its time limit of rank 1" in text


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("127.0.0.1", "rank 0 not reached at 127.0.0.1:{port} within 0.3"),
        ("no-such-host.invalid", "rank 0 not reached at no-such-host.invalid:{port} within 0.3"),
        ("a" * 70, "AIACC_ADDR cannot be the name of a host"),
    ],
)
def test_rank_0_is_not_reached(host, said, port):
    end = provider(1, 2, port, host=host)
    with pytest.raises(BootstrapError, match=said.format(port=port)):
        exchange(end, b"", timeout_s=SHORT_S)
    with pytest.raises(BootstrapError, match="closed"):
        end.all_gather(b"", timeout_s=SHORT_S)


def connected_to_itself(port):
    """What connecting to a free local port yields when the kernel picks that port for the end."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier test may have had it
    sock.bind(("127.0.0.1", port))
    sock.connect(("127.0.0.1", port))
    return sock


def connected_and_reset(port):
    """What is left of a connection that a closing port has just reset."""
    sock = socket.socket()
    with socket.create_server(("127.0.0.1", port)) as server:
        sock.connect(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
    with pytest.raises(ConnectionResetError):
        sock.recv(1)
    return sock


@pytest.mark.parametrize("first_attempt", [connected_to_itself, connected_and_reset])
def test_a_bad_first_connection_is_closed_and_tried_again(first_attempt, port, monkeypatch):
    connect, made, again = socket.create_connection, [], threading.Event()

    def connect_badly_once(address, *args, **options):
        if not made:
            made.append(first_attempt(port))
            return made[0]
        again.set()
        return connect(address, *args, **options)

    with Ranks(2) as ranks:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "create_connection", connect_badly_once)
            one = ranks.submit(gather, 1, 2, port)
            assert again.wait(PATIENT_S)
        assert made[0].fileno() == -1
        zero = ranks.submit(gather, 0, 2, port)
        assert outcome(zero) == outcome(one) == BOTH


#: What a server that is not rank 0 says, and the error of rank 1, which knows a token.
SERVERS = [
    (b"", "accepts the connection but does not answer"),
    (b"220 mail.example.org ESMTP\r\n", "is not rank 0 of this job: b'220 mail"),
    (
        message(frames.Kind.CHALLENGE, bytes(16)) + message(frames.Kind.WELCOME, b"0" * 64),
        "does not know this job's AIACC_TOKEN",
    ),
]


@pytest.mark.parametrize(("says", "error"), SERVERS)
def test_what_is_not_rank_0_is_not_trusted(says, error, port):
    patience_s = PATIENT_S if says else SHORT_S
    with socket.create_server(("127.0.0.1", port)) as server, Ranks(1) as ranks:
        future = ranks.submit(gather, 1, 2, port, token="secret", timeout_s=patience_s)
        connection, _ = server.accept()
        with connection:
            connection.sendall(says)
            assert error in outcome(future)


def test_a_mismatch_reaches_a_rank_that_comes_later(port, monkeypatch):
    monkeypatch.setattr(rendezvous_server, "_FAREWELL_S", PATIENT_S)
    with Ranks(3) as ranks:
        zero, one = ranks.submit(gather, 0, 3, port), ranks.submit(gather, 1, 4, port)
        texts = [outcome(one), outcome(ranks.submit(gather, 2, 3, port)), outcome(zero)]
    for text in texts:
        assert "rank 0 was started with size 3, rank 1 with size 4" in text


@pytest.fixture
def idle():
    """A process that lives until its input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_who_does_not_come_although_told_the_same_is_named(idle, port, monkeypatch, caplog):
    monkeypatch.setattr(rivals, "find", lambda *_: [rivals.Rival(idle.pid, "idle")])
    calls = [lambda: gather(0, 2, port), lambda: gather(1, 2, port, timeout_s=ENOUGH_S)]
    assert run_all(calls) == [BOTH] * 2, "the client's time ends the wait"
    (record,) = caplog.records
    assert f"process {idle.pid} (idle) of this host was started for 127.0.0.1" in record.message


def test_the_end_of_a_process_or_a_token_ends_the_wait_for_it(idle, port, monkeypatch, caplog):
    def find(*_):
        idle.kill()
        return [rivals.Rival(idle.pid, "idle")]

    monkeypatch.setattr(rivals, "find", find)
    with undisturbed(port):
        pass
    assert not caplog.records
    monkeypatch.setattr(rivals, "find", None)
    with undisturbed(port, token="secret"):
        pass


SECOND_RANK_0 = """
import sys
from aiacc.exceptions import BootstrapError
from tests.support.rendezvous import gather
try:
    gather(0, 2, int(sys.argv[1]), token=sys.argv[2])
except BootstrapError as error:
    print(error)
"""


def second_rank_0(port, token=""):
    """Text of what a second process gets that is rank 0 at this port."""
    command = [sys.executable, "-c", SECOND_RANK_0, str(port), token]
    return run_program(command, check=True).stdout


def test_a_second_rank_0_ends_both_exchanges(port, monkeypatch):
    monkeypatch.setattr(rendezvous_server, "_FAREWELL_S", PATIENT_S)
    with Ranks(3) as ranks:
        zero = ranks.submit(gather, 0, 3, port)
        one = ranks.submit(gather, 1, 3, port)
        dial(port).close()  # now it listens
        assert f"the port is taken by process {os.getpid()} (" in second_rank_0(port)
        two = ranks.submit(gather, 2, 3, port)
        for text in (outcome(zero), outcome(one), outcome(two)):
            assert re.search(rf"rank 0 came twice: .* pid {os.getpid()}, .* and process \d+", text)
            assert "AIACC_TOKEN of its own" in text


def test_a_rank_0_with_another_token_is_no_second_one(port):
    with undisturbed(port):
        dial(port).close()
        assert "the port is taken by process" in second_rank_0(port, "another")


def test_rank_0_as_a_client_is_told(port):
    with Ranks(1) as ranks:
        zero = ranks.submit(gather, 0, 3, port)
        with ByHand(port) as client:
            assert client.introduce(0, 3).kind == frames.Kind.WELCOME
            texts = [client.next().body.decode(), outcome(zero)]
        for text in texts:
            assert "out of range or taken by rank 0" in text


def test_wrong_token_is_told_at_once_and_disturbs_nobody(port, caplog):
    with undisturbed(port, token="right"):
        (wrong,) = run_all([lambda: gather(1, 2, port, token="wrong")])
        assert "wrong AIACC_TOKEN from rank 1" in wrong
    assert "wrong AIACC_TOKEN" in caplog.text


#: What a rank sends after it was welcome, and what the others are told; None: it leaves.
NONSENSE = [
    (b"garbage after a good hello", "sent nonsense: b'garbage after a ' is not a message of aiacc"),
    (
        struct.pack("!4sHHI", b"AIRV", 1, frames.Kind.PAYLOAD, 0xFFFFFFF0),
        "sent nonsense: rendezvous protocol version 1",
    ),
    (message(frames.Kind.WELCOME, b""), "sent nonsense: unexpected WELCOME"),
    (message(frames.Kind.PAYLOAD, b"\0"), "sent nonsense: payload of 1 bytes"),
    (message(frames.Kind.PAYLOAD, bytes(3) + b"\1"), "is at exchange 1, rank 0 at 0"),
    (None, "left during the exchange"),
]


@pytest.mark.parametrize(("nonsense", "why"), NONSENSE)
def test_nonsense_or_the_end_of_a_rank_fails_every_rank_and_names_it(nonsense, why, port):
    with Ranks(2) as ranks:
        zero, two = ranks.submit(gather, 0, 3, port), ranks.submit(gather, 2, 3, port)
        with ByHand(port) as client:
            assert client.introduce(1, 3).kind == frames.Kind.WELCOME
            if nonsense is None:
                client.channel.close()
            else:
                client.socket.sendall(nonsense)
            told = outcome(zero)
        assert "rank 1 (by hand, 127.0.0.1" in told
        assert why in told
        assert outcome(two) == told or "not reached" in outcome(two)


def test_a_channel_without_a_message_does_not_block():
    ours, theirs = socket.socketpair()
    with contextlib.closing(frames.Channel(ours, limit=99)) as channel, theirs:
        assert channel.receive() == []
        theirs.sendall(message(frames.Kind.FAIL, b"why"))
        assert channel.receive() == [frames.Message(frames.Kind.FAIL, b"why")]


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
    with contextlib.ExitStack() as stack, undisturbed(port):
        stranger = stack.enter_context(dial(port))
        stranger.sendall(STRANGERS[kind])
        if not stays:
            stranger.close()


def test_proper_hellos_with_wrong_fields_end_nothing(port):
    """The job has no token, so that the proof of each of them is right."""
    with undisturbed(port):
        for field, value in itertools.product(("challenge", "label"), (7, "\ud800")):
            with ByHand(port) as stranger:
                assert stranger.introduce(1, 2, **{field: value}).kind == frames.Kind.REFUSE


def test_a_silent_stranger_is_dropped_and_mentioned(port, monkeypatch):
    monkeypatch.setattr(rendezvous_server, "_HELLO_PATIENCE_S", 0.05)
    with Ranks(1) as ranks:
        zero = ranks.submit(gather, 0, 2, port, timeout_s=1.0)
        with dial(port) as stranger:
            while stranger.recv(4096):
                pass
        assert "it did not say who it is" in outcome(zero)


def test_many_strangers_do_not_keep_a_rank_out(port, monkeypatch):
    monkeypatch.setattr(rendezvous_server, "_STRANGERS", 4)
    with contextlib.ExitStack() as stack, undisturbed(port):
        for _ in range(20):
            stack.enter_context(dial(port))


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
        zero, one = (ranks.submit(gather, rank, 3, port) for rank in (0, 1))
        assert someone_is_in.wait(PATIENT_S)
        two = ranks.submit(gather, 2, 3, port, timeout_s=SHORT_S)
        for future in (zero, one):
            assert text in outcome(future)
        assert "rank 0 not reached" in outcome(two) or "no result" in outcome(two)


def test_descriptors_that_strangers_have_are_taken_from_them(port, monkeypatch):
    turn = itertools.count()
    scarce(monkeypatch, errno.EMFILE, "accept", lambda: next(turn) == 1)
    with contextlib.ExitStack() as stack, undisturbed(port):
        assert stack.enter_context(dial(port)).recv(1)  # it is in


@no_room
def test_a_rank_without_descriptors_says_so_at_once(number, text, port, monkeypatch):
    scarce(monkeypatch, number, "create_connection")
    (said,) = run_all([lambda: gather(1, 2, port)])
    assert text in said
