"""What the PMIx client does without a server."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

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
    monkeypatch.setattr(time, "sleep", lambda _: later.wait())
    thread = pmix_client.hold(client)
    server.sendall(b"answer")
    assert not is_readable(client, 100)
    later.set()
    thread.join()
    assert is_readable(client, PATIENT_MS)


def test_it_is_released_without_an_answer(ends, monkeypatch):
    monkeypatch.setattr(pmix_client, "_LAST_ANSWER_S", 0.0)
    client, server = ends
    pmix_client.hold(client).join()
    server.sendall(b"answer")
    assert is_readable(client, PATIENT_MS)
