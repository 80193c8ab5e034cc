"""Who else on this host was started for an address."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from aiacc.bootstrap import rivals
from tests.support.ranks import free_port, rank_environment

#: Has a child that was told the same, says which, and lives until its input ends.
WITH_A_WORKER = """
import subprocess, sys
idle = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
with subprocess.Popen(idle, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
    worker.stdout.readline()
    print(worker.pid, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def running(port, **changes):
    """Process ids of a process that was told the address, and of its worker."""
    env = {"AIACC_ADDR": f"127.0.0.1:{port}", "AIACC_RANK": "1", **changes}
    with subprocess.Popen(
        [sys.executable, "-c", WITH_A_WORKER],
        env=rank_environment(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process.pid, int(process.stdout.readline())


def found(port, *members):
    return {rival.pid for rival in rivals.find(("127.0.0.1", port), members)}


def test_a_process_for_the_same_address_that_is_no_member():
    port = free_port()
    with running(port) as strangers:
        assert found(port, os.getppid()) == set(), "all descend from a member"
        assert found(port) == set(strangers)
        (text,) = {str(r) for r in rivals.find(("127.0.0.1", port), []) if r.pid == strangers[0]}
        assert text.startswith(f"process {strangers[0]} (")


def test_members_their_workers_and_who_started_them_are_left_out():
    port = free_port()
    with running(port) as (rank, worker):
        assert found(port, rank) == set()
        assert found(port, worker) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"AIACC_TOKEN": "secret"},
        {"AIACC_RANK": ""},
        {"AIACC_ADDR": "127.0.0.1:1"},
        {"AIACC_ADDR": "nonsense"},
    ],
)
def test_who_was_told_something_else_is_no_rival(changes):
    port = free_port()
    with running(port, **changes):
        assert found(port) == set()


def test_a_process_that_is_much_older_is_no_rival(monkeypatch):
    port = free_port()
    monkeypatch.setattr(rivals, "_TOGETHER_S", -1e9)
    with running(port):
        assert found(port) == set()


def test_process_ids_are_valid_in_one_place():
    assert rivals.process_space() == rivals.process_space() != ""
