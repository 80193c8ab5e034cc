"""Processes of this host: who else was started for an address, and waiting for the end of one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest

from aiacc.bootstrap import processes, rivals
from tests.support.ranks import free_port, rank_environment

PATIENT_S = 30.0

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


def test_a_process_for_the_same_address_that_is_no_member(monkeypatch):
    port = free_port()
    with running(port) as (rank, worker):
        assert found(port) == {rank, worker}
        (text,) = {str(r) for r in rivals.find(("127.0.0.1", port), []) if r.pid == rank}
        assert text.startswith(f"process {rank} (")
        for member in (rank, worker, os.getppid()):
            assert found(port, member) == set(), "it, or what has started it or was started by it"
        monkeypatch.setattr(rivals, "_TOGETHER_S", -1e9)
        assert found(port) == set(), "they are much older"


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


def test_process_ids_are_valid_in_one_place():
    assert rivals.process_space() == rivals.process_space() != ""


def forbidden(process):
    raise PermissionError(1, "seccomp")


@pytest.fixture(params=["descriptor", "system call", "poll"])
def way(request, monkeypatch):
    """How it is seen that a process has ended."""
    if request.param == "system call":
        monkeypatch.delattr(os, "pidfd_open")
    elif request.param == "poll":
        monkeypatch.setattr(processes, "open_pidfd", forbidden)


@pytest.fixture
def child():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


@pytest.mark.usefixtures("way")
def test_the_end_of_a_process_is_waited_for_no_longer_than_told(child):
    processes.wait_for_end([child.pid], 0.0)
    assert child.poll() is None
    done = []

    def end():
        done.append(True)
        child.communicate()

    timer = threading.Timer(0.2, end)
    timer.start()
    processes.wait_for_end([child.pid], PATIENT_S)
    assert done
    timer.join()
    processes.wait_for_end([child.pid, child.pid], PATIENT_S)  # has ended


def test_no_descriptor_of_what_has_ended(child, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    child.communicate()
    with pytest.raises(ProcessLookupError):
        processes.open_pidfd(child.pid)
