"""The rendezvous with ranks as threads: what works, and every way in which it must fail clearly."""

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
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from aiacc import _core
from aiacc.bootstrap import frames, rendezvous_server
from aiacc.bootstrap.address import join_address, listen, port_owner, split_address
from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.exceptions import BootstrapError

PATIENT_S = 20.0
SHORT_S = 0.3


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def descriptors():
    """What this process has open, by number."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is gone by now
            found[entry.name] = str(entry.readlink())
    return found


@pytest.fixture(autouse=True)
def nothing_left_open():
    before, threads = descriptors(), threading.active_count()
    yield
    assert descriptors() == before
    assert threading.active_count() == threads


def provider(rank, size, port, *, token="", generation=0, host="127.0.0.1"):
    return RendezvousProvider(
        rank=rank, size=size, address=f"{host}:{port}", token=token, generation=generation
    )


class Ranks:
    """Runs one function per rank, each on its own thread."""

    def __init__(self, count):
        self._pool = ThreadPoolExecutor(count)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pool.shutdown()

    def start(self, function, *args) -> Future:
        return self._pool.submit(function, *args)


def gather(rank, size, port, *, timeout_s=PATIENT_S, payload=None, **options):
    end = provider(rank, size, port, **options)
    try:
        body = f"from {rank}".encode() if payload is None else payload
        return end.all_gather(body, timeout_s=timeout_s)
    finally:
        end.close()


def outcome(future):
    try:
        return future.result(timeout=PATIENT_S)
    except BootstrapError as error:
        return str(error)


def run_all(calls):
    """Outcome of each call: its result, or the text of its BootstrapError."""
    with Ranks(len(calls)) as ranks:
        return [outcome(future) for future in [ranks.start(call) for call in calls]]


def dial(port):
    """A stranger's connection; waits for the port to open."""
    end = time.monotonic() + PATIENT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENT_S)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_every_rank_gets_every_payload_in_rank_order(size, port):
    results = run_all([lambda rank=rank: gather(rank, size, port) for rank in range(size)])
    assert results == [[f"from {rank}".encode() for rank in range(size)]] * size


def test_several_exchanges_over_one_provider(port):
    def body(rank):
        end = provider(rank, 3, port)
        try:
            return [end.all_gather(bytes([rank, n]), timeout_s=PATIENT_S) for n in range(5)]
        finally:
            end.close()

    expected = [[bytes([rank, n]) for rank in range(3)] for n in range(5)]
    assert run_all([lambda rank=rank: body(rank) for rank in range(3)]) == [expected] * 3


def test_payloads_of_different_length_up_to_the_limit(port):
    payloads = [b"", os.urandom(1 << 20), b"x"]
    results = run_all(
        [lambda rank=rank: gather(rank, 3, port, payload=payloads[rank]) for rank in range(3)]
    )
    assert results == [payloads] * 3


def test_a_fast_rank_may_begin_the_next_generation_200_times(port):
    def body(rank):
        for generation in range(200):
            got = gather(rank, 2, port, generation=generation, payload=b"%d" % generation)
            assert got == [b"%d" % generation] * 2
        return "done"

    assert run_all([lambda: body(0), lambda: body(1)]) == ["done", "done"]


def test_a_restarted_rank_catches_up_with_the_generation_of_the_others(port):
    def body(rank, generation):
        end = provider(rank, 3, port, generation=generation)
        try:
            end.all_gather(b"", timeout_s=PATIENT_S)
            return end.generation
        finally:
            end.close()

    results = run_all([lambda: body(0, 5), lambda: body(1, 0), lambda: body(2, 5)])
    assert results == [5, 5, 5]


def test_missing_ranks_are_named_on_every_rank_that_came(port):
    results = run_all(
        [
            lambda: gather(0, 4, port, timeout_s=SHORT_S),
            lambda: gather(2, 4, port, timeout_s=PATIENT_S),
        ]
    )
    for text in results:
        assert "ranks 1 and 3 of 4 did not come within 0.3 s of rank 0" in text


def test_a_client_whose_time_is_over_ends_the_exchange_for_all(port):
    results = run_all(
        [
            lambda: gather(0, 3, port, timeout_s=PATIENT_S),
            lambda: gather(1, 3, port, timeout_s=SHORT_S),
        ]
    )
    for text in results:
        assert "rank 2 of 3 did not come within its time limit of rank 1" in text


def test_rank_0_not_there(port):
    with pytest.raises(BootstrapError, match=rf"rank 0 not reached at 127.0.0.1:{port} within 0.3"):
        gather(1, 2, port, timeout_s=SHORT_S)


def connected_to_itself(port):
    """What connecting to a free local port yields when the kernel picks that port for the end."""
    sock = socket.socket()
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
    connect, made = socket.create_connection, []

    def connect_badly_once(address, *args, **options):
        made.append(first_attempt(port) if not made else None)
        return made[0] if len(made) == 1 else connect(address, *args, **options)

    with Ranks(2) as ranks:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "create_connection", connect_badly_once)
            one = ranks.start(gather, 1, 2, port)
            while len(made) < 2:
                time.sleep(0.001)
        assert made[0].fileno() == -1
        zero = ranks.start(gather, 0, 2, port)
        assert outcome(zero) == outcome(one) == [b"from 0", b"from 1"]


def test_unreachable_address(port):
    with pytest.raises(BootstrapError, match=r"rank 0 not reached at no-such-host\.invalid"):
        gather(1, 2, port, timeout_s=SHORT_S, host="no-such-host.invalid")


def test_a_port_that_accepts_but_says_nothing(port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(BootstrapError, match="accepts the connection but does not answer"),
    ):
        gather(1, 2, port, timeout_s=SHORT_S)


def test_another_service_on_the_port(port):
    with socket.create_server(("127.0.0.1", port)) as server, Ranks(1) as ranks:
        future = ranks.start(gather, 1, 2, port)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"220 mail.example.org ESMTP\r\n")
            assert "is not rank 0 of this job: b'220 mail" in outcome(future)


def test_port_taken_names_the_process(port):
    with socket.create_server(("127.0.0.1", port)):
        assert str(os.getpid()) in port_owner(port)
        with pytest.raises(BootstrapError, match=rf"the port is taken by process {os.getpid()} "):
            gather(0, 2, port)


@pytest.mark.parametrize(("zero_thinks", "one_thinks"), [(3, 2), (2, 3)])
def test_wrong_rank_count_fails_everywhere_with_both_numbers(zero_thinks, one_thinks, port):
    calls = [lambda: gather(0, zero_thinks, port), lambda: gather(1, one_thinks, port)]
    for text in run_all(calls):
        assert f"rank 0 was started with size {zero_thinks}" in text
        assert f"rank 1 with size {one_thinks}" in text


def test_a_mismatch_reaches_a_rank_that_comes_later(port, monkeypatch):
    monkeypatch.setattr(rendezvous_server, "_FAREWELL_S", PATIENT_S)
    with Ranks(3) as ranks:
        first = [ranks.start(gather, 0, 3, port), ranks.start(gather, 1, 4, port)]
        texts = [outcome(first[1])]
        texts.append(outcome(ranks.start(gather, 2, 3, port)))
        texts.append(outcome(first[0]))
    assert all("size 3" in text and "size 4" in text for text in texts)


def test_duplicate_rank(port):
    results = run_all([lambda rank=rank: gather(rank, 3, port) for rank in (0, 1, 1)])
    for text in results:
        assert "rank 1 came twice" in text


SECOND_RANK_0 = """
import sys
from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.exceptions import BootstrapError
address, token = sys.argv[1:]
end = RendezvousProvider(rank=0, size=2, address=address, token=token, generation=0)
try:
    end.all_gather(b"", timeout_s=20.0)
except BootstrapError as error:
    print(error)
"""


def second_rank_0(port, token=""):
    """Text of what a second process gets that is rank 0 at this port."""
    command = [sys.executable, "-c", SECOND_RANK_0, f"127.0.0.1:{port}", token]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_second_rank_0_ends_both_exchanges(port, monkeypatch):
    monkeypatch.setattr(rendezvous_server, "_FAREWELL_S", PATIENT_S)
    with Ranks(3) as ranks:
        zero = ranks.start(gather, 0, 3, port)
        one = ranks.start(gather, 1, 3, port)
        dial(port).close()  # now it listens
        assert f"the port is taken by process {os.getpid()} (" in second_rank_0(port)
        two = ranks.start(gather, 2, 3, port)
        for text in (outcome(zero), outcome(one), outcome(two)):
            assert re.search(rf"rank 0 came twice: .* pid {os.getpid()}, .* and process \d+", text)
            assert "AIACC_TOKEN of its own" in text


def test_a_rank_0_with_another_token_is_no_second_one(port):
    with Ranks(2) as ranks:
        zero = ranks.start(gather, 0, 2, port)
        dial(port).close()
        assert "the port is taken by process" in second_rank_0(port, "another")
        one = ranks.start(gather, 1, 2, port)
        assert outcome(zero) == outcome(one) == [b"from 0", b"from 1"]


def test_rank_0_as_a_client_is_told(port):
    with Ranks(1) as ranks:
        zero = ranks.start(gather, 0, 3, port)
        with dial(port) as sock:
            reply = introduce(sock, rank=0, size=3)
        assert "out of range or taken by rank 0" in reply.body.decode()
        assert "out of range or taken by rank 0" in outcome(zero)


def test_wrong_token_is_told_at_once_and_disturbs_nobody(port, caplog):
    with Ranks(3) as ranks:
        zero = ranks.start(lambda: gather(0, 2, port, token="right"))
        wrong = outcome(ranks.start(lambda: gather(1, 2, port, token="wrong")))
        assert "wrong AIACC_TOKEN from rank 1" in wrong
        one = ranks.start(lambda: gather(1, 2, port, token="right"))
        assert outcome(zero) == outcome(one) == [b"from 0", b"from 1"]
    assert "wrong AIACC_TOKEN" in caplog.text


def test_a_server_without_the_token_is_not_trusted(port):
    with socket.create_server(("127.0.0.1", port)) as server, Ranks(1) as ranks:
        future = ranks.start(lambda: gather(1, 2, port, token="secret"))
        connection, _ = server.accept()
        with connection:
            connection.sendall(message(frames.Kind.CHALLENGE, bytes(16)))
            connection.sendall(message(frames.Kind.WELCOME, b"0" * 64))
            assert "does not know this job's AIACC_TOKEN" in outcome(future)


def message(kind, body):
    return struct.pack("!4sHHI", b"AIRV", 1, kind, len(body)) + body


def introduce(sock, *, rank, size, token=""):
    """Speak the protocol by hand; the reply after WELCOME."""
    channel = frames.Channel(sock.dup(), limit=1 << 20)
    try:
        challenge = wait_message(channel).body
        hello = frames.Hello(rank, size, 0, "by hand", "00")
        channel.queue(frames.Kind.HELLO, hello.encode(token, challenge))
        channel.flush()
        reply = wait_message(channel)
        return wait_message(channel) if reply.kind == frames.Kind.WELCOME else reply
    finally:
        channel.close()


_early: dict = {}


def wait_message(channel):
    queue = _early.setdefault(id(channel), [])
    end = time.monotonic() + PATIENT_S
    while not queue and time.monotonic() < end:
        queue += channel.receive()
        time.sleep(0.001)
    return queue.pop(0)


def hello_of(**changes):
    """A hello of rank 1 with a proof that fits to nothing, and with fields of a stranger's."""
    fields = {"rank": 1, "size": 2, "generation": 0, "label": "x", "challenge": "00"} | changes
    return message(
        frames.Kind.HELLO, json.dumps({"fields": json.dumps(fields), "proof": "00"}).encode()
    )


STRANGERS = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "garbage": os.urandom(4096),
    "silence": b"",
    "truncated": message(frames.Kind.HELLO, b"x" * 100)[:50],
    "huge": struct.pack("!4sHHI", b"AIRV", 1, frames.Kind.HELLO, 0xFFFFFFFF),
    "old version": struct.pack("!4sHHI", b"AIRV", 99, frames.Kind.HELLO, 4) + b"abcd",
    "unknown kind": message(77, b""),
    "not json": message(frames.Kind.HELLO, b"\xff\xfe{"),
    "deep json": message(frames.Kind.HELLO, b"[" * 4000),
    "wrong types": message(frames.Kind.HELLO, json.dumps({"fields": 3, "proof": []}).encode()),
    "number as challenge": hello_of(challenge=7),
    "lone surrogate as challenge": hello_of(challenge="\ud800"),
    "lone surrogate as label": hello_of(label="\ud800"),
    "list as label": hello_of(label=[1]),
    "number as fields": message(frames.Kind.HELLO, b'{"fields": 7, "proof": "00"}'),
    "deep json as fields": message(
        frames.Kind.HELLO, json.dumps({"fields": "[" * 3900, "proof": "00"}).encode()
    ),
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
        assert outcome(zero) == outcome(one) == [b"from 0", b"from 1"]


def test_proper_hellos_with_wrong_fields_end_nothing(port):
    """The job has no token, so that the proof of each of them is right."""
    wrong: list[dict] = [
        {"challenge": 7},
        {"challenge": "\ud800"},
        {"label": "\ud800"},
        {"label": 7},
    ]
    with Ranks(2) as ranks:
        zero = ranks.start(gather, 0, 2, port)
        for changes in wrong:
            with dial(port) as sock:
                channel = frames.Channel(sock.dup(), limit=1 << 20)
                challenge = wait_message(channel).body
                hello = frames.Hello(1, 2, 0, "by hand", "00")._replace(**changes)
                channel.queue(frames.Kind.HELLO, hello.encode("", challenge))
                channel.flush()
                assert wait_message(channel).kind == frames.Kind.REFUSE
                channel.close()
        one = ranks.start(gather, 1, 2, port)
        assert outcome(zero) == outcome(one) == [b"from 0", b"from 1"]


def test_a_name_that_cannot_be_a_hosts(port):
    with pytest.raises(BootstrapError, match=r"AIACC_ADDR cannot be the name of a host"):
        gather(1, 2, port, timeout_s=PATIENT_S, host="a" * 70)


def test_a_silent_stranger_is_dropped_and_mentioned(port, monkeypatch):
    monkeypatch.setattr(rendezvous_server, "_HELLO_PATIENCE_S", 0.05)
    with Ranks(1) as ranks:
        zero = ranks.start(lambda: gather(0, 2, port, timeout_s=1.0))
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
        assert outcome(zero) == outcome(one) == [b"from 0", b"from 1"]


#: How the kernel says that there is no room for another socket, and what the error names then.
SCARCE = [
    (errno.EMFILE, "files and sockets open (its limit is"),
    (errno.ENFILE, "sysctl fs.file-max"),
    (errno.ENOBUFS, "no memory left for another socket"),
]


def accept_fails(monkeypatch, when, number=errno.EMFILE):
    """Descriptors have run out whenever ``when()`` is true."""
    genuine = socket.socket.accept

    def accept(listener):
        if when():
            raise OSError(number, os.strerror(number))
        return genuine(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)


@pytest.mark.parametrize(("number", "text"), SCARCE)
def test_a_rank_0_without_descriptors_says_so_to_those_who_are_in(number, text, port, monkeypatch):
    genuine, someone_is_in = rendezvous_server.RendezvousServer._admit, threading.Event()

    def admit(*args):
        genuine(*args)
        someone_is_in.set()

    monkeypatch.setattr(rendezvous_server.RendezvousServer, "_admit", admit)
    accept_fails(monkeypatch, someone_is_in.is_set, number)
    with Ranks(3) as ranks:
        zero, one = (ranks.start(gather, rank, 3, port) for rank in (0, 1))
        assert someone_is_in.wait(PATIENT_S)
        two = ranks.start(lambda: gather(2, 3, port, timeout_s=SHORT_S))
        for future in (zero, one):
            assert text in outcome(future)
        assert "rank 0 not reached" in outcome(two) or "no result" in outcome(two)


def test_descriptors_that_strangers_have_are_taken_from_them(port, monkeypatch):
    turn = itertools.count()
    accept_fails(monkeypatch, lambda: next(turn) == 1)
    with Ranks(2) as ranks:
        zero = ranks.start(gather, 0, 2, port)
        with dial(port) as stranger:
            assert stranger.recv(1)  # it is in
            one = ranks.start(gather, 1, 2, port)
            assert outcome(zero) == outcome(one) == [b"from 0", b"from 1"]


@pytest.mark.parametrize(("number", "text"), SCARCE)
def test_a_rank_without_descriptors_says_so_at_once(number, text, port, monkeypatch):
    def connect(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_connection", connect)
    (said,) = run_all([lambda: gather(1, 2, port)])
    assert text in said


@pytest.mark.parametrize(
    "nonsense",
    [
        b"garbage after a good hello",
        struct.pack("!4sHHI", b"AIRV", 1, frames.Kind.PAYLOAD, 0xFFFFFFF0),
        message(frames.Kind.WELCOME, b""),
        message(frames.Kind.PAYLOAD, b"\0"),
    ],
)
def test_nonsense_from_a_rank_fails_every_rank_and_names_it(nonsense, port):
    with Ranks(2) as ranks:
        zero, two = ranks.start(gather, 0, 3, port), ranks.start(gather, 2, 3, port)
        with dial(port) as sock:
            channel = frames.Channel(sock.dup(), limit=1 << 20)
            challenge = wait_message(channel).body
            hello = frames.Hello(1, 3, 0, "by hand", "00")
            channel.queue(frames.Kind.HELLO, hello.encode("", challenge))
            channel.flush()
            assert wait_message(channel).kind == frames.Kind.WELCOME
            sock.setblocking(True)
            sock.sendall(nonsense)
            assert "rank 1 (by hand" in outcome(zero)
            channel.close()
        assert "sent nonsense" in outcome(zero) or "exchange" in outcome(zero)
        assert outcome(two) == outcome(zero) or "not reached" in outcome(two)


def test_a_rank_that_dies_fails_the_others_at_once(port):
    with Ranks(1) as ranks:
        zero = ranks.start(gather, 0, 3, port)
        with dial(port) as sock:
            channel = frames.Channel(sock.dup(), limit=1 << 20)
            challenge = wait_message(channel).body
            hello = frames.Hello(1, 3, 0, "by hand", "00")
            channel.queue(frames.Kind.HELLO, hello.encode("", challenge))
            channel.flush()
            assert wait_message(channel).kind == frames.Kind.WELCOME
            channel.close()
        assert "rank 1 (by hand, 127.0.0.1" in outcome(zero)
        assert "left during the exchange" in outcome(zero)


def test_unequal_numbers_of_exchanges(port):
    def zero():
        end = provider(0, 2, port)
        try:
            end.all_gather(b"", timeout_s=PATIENT_S)
            return end.all_gather(b"", timeout_s=PATIENT_S)
        finally:
            end.close()

    results = run_all([zero, lambda: gather(1, 2, port)])
    assert results[1] == [b"", b"from 1"]
    assert "rank 1" in results[0]
    assert "left during the exchange" in results[0]


def test_a_closed_provider_says_so(port):
    end = provider(1, 2, port)
    end.close()
    end.close()
    with pytest.raises(BootstrapError, match="closed"):
        end.all_gather(b"", timeout_s=SHORT_S)


def test_a_payload_beyond_the_limit(port):
    with pytest.raises(BootstrapError, match="1048577 bytes"):
        gather(1, 2, port, payload=bytes((1 << 20) + 1))


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:70000", "host:x", "::1:5", "host:-1", "h:²"]
)
def test_bad_address(text):
    with pytest.raises(BootstrapError, match="AIACC_ADDR="):
        split_address(text)


def test_addresses():
    assert split_address("node7:1234") == ("node7", 1234)
    assert split_address("[::1]:1") == ("::1", 1)
    assert split_address("[2001:db8::1]:29500") == ("2001:db8::1", 29500)
    assert split_address("[fe80::1%eth0]:2") == ("fe80::1%eth0", 2)
    assert join_address("fe80::1%eth0", 2) == "[fe80::1%eth0]:2"
    assert join_address("::ffff:10.0.0.1", 2) == "10.0.0.1:2"
    assert join_address("node7", 2) == "node7:2"


def test_a_link_local_address_needs_its_interface():
    with pytest.raises(BootstrapError, match=r"expected one, as \[fe80::1%eth0\]:80"):
        split_address("[fe80::1]:80")


def _link_local() -> str:
    """A link-local address of this host with its interface, "" if it has none."""
    return next(
        (
            f"{address}%{interface}"
            for interface, address, _, running in _core.interface_addresses()
            if running and address.startswith("fe80:")
        ),
        "",
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", _link_local()])
def test_an_address_is_bound_as_such(port, host):
    if not any(one[1] == host.partition("%")[0] for one in _core.interface_addresses()):
        pytest.skip("this host has no such address")
    with listen(host, port, 1) as server:
        assert server.getsockname()[0] == host.partition("%")[0]
        with socket.create_connection((host, port), 5):
            pass


def test_an_interface_that_is_not_there(port):
    with pytest.raises(BootstrapError, match=r"cannot listen on \[fe80::1%nosuch0\]"):
        listen("fe80::1%nosuch0", port, 1)


def test_a_name_is_bound_on_every_interface(port):
    # The name may be 127.0.1.1 to this host, and its real address to the others.
    with listen(socket.gethostname(), port, 1), socket.create_connection(("127.0.0.1", port), 5):
        pass


def test_results_that_are_cut_are_noticed():
    whole = frames.encode_result(7, [b"ab", b"", b"cde"])
    assert frames.decode_result(whole, 3) == (7, [b"ab", b"", b"cde"])
    for end in range(len(whole)):
        with pytest.raises(frames.ProtocolError):
            frames.decode_result(whole[:end], 3)
    with pytest.raises(frames.ProtocolError):
        frames.decode_result(whole + b"x", 3)
