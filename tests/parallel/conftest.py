"""Fixtures of jobs."""

from __future__ import annotations

import pytest

from tests.support.ranks import free_port


@pytest.fixture
def port() -> int:
    """Where a job or torch may meet: nobody listens there."""
    return free_port()


@pytest.fixture
def other_port() -> int:
    """Another one."""
    return free_port()
