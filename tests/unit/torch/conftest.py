"""Fixtures of several files here."""

import pytest

import aiacc.torch as hvd


@pytest.fixture
def job_of_one():
    hvd.init()
    yield
    hvd.shutdown()
