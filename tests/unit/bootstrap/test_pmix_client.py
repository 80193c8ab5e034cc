"""What the PMIx client does without a server."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import pytest

from aiacc.bootstrap.providers import pmix_client

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
