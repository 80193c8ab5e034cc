"""The rendezvous with ranks as threads: what works, and every way in which it must fail clearly."""

import os
import re
import socket
import struct
import subprocess
import sys
import time

import pytest

from aiacc.bootstrap import frames, rendezvous_server, rivals
from aiacc.bootstrap.address import port_owner
from aiacc.exceptions import BootstrapError
from tests.support.rendezvous import (
    PATIENT_S,
    SHORT_S,
    Ranks,
    dial,
    gather,
    introduce,
    message,
    outcome,
    provider,
    run_all,
    wait_message,
)

pytestmark = pytest.mark.usefixtures("nothing_left_open")


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


@pytest.fixture
def idle():
    """A process that lives until its input ends."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_who_does_not_come_although_told_the_same_is_named(idle, port, monkeypatch, caplog):
    monkeypatch.setattr(rivals, "find", lambda *_: [rivals.Rival(idle.pid, "idle")])
    calls = [lambda: gather(0, 2, port), lambda: gather(1, 2, port, timeout_s=SHORT_S)]
    assert run_all(calls) == [[b"from 0", b"from 1"]] * 2, "the client's time ends the wait"
    (record,) = caplog.records
    assert f"process {idle.pid} (idle) of this host was started for 127.0.0.1" in record.message


def test_the_end_of_a_process_ends_the_wait_for_it(idle, port, monkeypatch, caplog):
    def find(*_):
        idle.kill()
        return [rivals.Rival(idle.pid, "idle")]

    monkeypatch.setattr(rivals, "find", find)
    assert run_all([lambda rank=rank: gather(rank, 2, port) for rank in (0, 1)])
    assert not caplog.records


def test_a_token_spares_the_search(port, monkeypatch):
    monkeypatch.setattr(rivals, "find", None)
    calls = [lambda rank=rank: gather(rank, 2, port, token="secret") for rank in (0, 1)]
    assert run_all(calls) == [[b"from 0", b"from 1"]] * 2


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


def test_results_that_are_cut_are_noticed():
    whole = frames.encode_result(7, [b"ab", b"", b"cde"])
    assert frames.decode_result(whole, 3) == (7, [b"ab", b"", b"cde"])
    for end in range(len(whole)):
        with pytest.raises(frames.ProtocolError):
            frames.decode_result(whole[:end], 3)
    with pytest.raises(frames.ProtocolError):
        frames.decode_result(whole + b"x", 3)
