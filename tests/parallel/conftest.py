"""Fixtures of jobs."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable

import pytest

from tests.support.ranks import free_port, run_example, run_ranks


@pytest.fixture
def port() -> int:
    """Where a job or torch may meet: nobody listens there."""
    return free_port()


@pytest.fixture
def other_port() -> int:
    """Another one."""
    return free_port()


class _Script:
    """A file that ranks run as Python does, forked from what has imported what ``like`` has."""

    def __init__(self, path: str, like: str) -> None:
        self._path, self.__module__ = path, like

    def __call__(self, *options: str) -> None:
        sys.argv = [self._path, *options]
        runpy.run_path(self._path, run_name="__main__")
        sys.stdout.flush()  # who has got the result may kill this rank


@pytest.fixture
def run(
    request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, str]]:
    """Run a file of examples/, unchanged, on ranks; what they write, and what of it is errors.

    By the launcher "forked" they need not start, by others they do all that a user's do.
    """

    def run(launcher: str, size: int, example: str, *options: str) -> tuple[str, str]:
        if launcher != "forked":
            ended = run_example(launcher, size, example, *options)
            return ended.stdout, ended.stderr
        script = _Script(f"examples/{example}", request.module.__name__)
        run_ranks(size, script, *options)
        return capfd.readouterr()

    return run
