"""Fixtures of several files here."""

import threading

import pytest

import aiacc
from aiacc.collectives import handles
from tests.support.footprint import descriptors
from tests.support.ranks import free_port


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def nothing_left_open():
    before, threads = descriptors(), threading.active_count()
    yield
    assert descriptors() == before
    assert threading.active_count() == threads


@pytest.fixture
def job_of_one():
    """In which nothing is under way at the end."""
    aiacc.init()
    yield
    assert not handles.pending
    aiacc.shutdown()
