"""Fixtures of several files here."""

import socket
import threading

import pytest

from tests.support.rendezvous import descriptors


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def nothing_left_open():
    before, threads = descriptors(), threading.active_count()
    yield
    assert descriptors() == before
    assert threading.active_count() == threads
