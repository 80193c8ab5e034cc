"""Waiting for processes, by descriptor and without."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from aiacc.bootstrap import processes

PATIENT_S = 30.0


def forbidden(process):
    raise PermissionError(1, "seccomp")


@pytest.fixture(params=["descriptor", "system call", "poll"])
def way(request, monkeypatch):
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
def test_waits_for_the_end(child):
    done = []

    def end():
        done.append(True)
        child.communicate()

    timer = threading.Timer(0.2, end)
    timer.start()
    processes.wait_for_end([child.pid], PATIENT_S)
    assert done
    timer.join()


@pytest.mark.usefixtures("way")
def test_waits_no_longer_than_told(child):
    processes.wait_for_end([child.pid], 0.0)
    assert child.poll() is None


@pytest.mark.usefixtures("way")
def test_what_has_ended_is_not_waited_for(child):
    child.communicate()
    processes.wait_for_end([child.pid, child.pid], PATIENT_S)


def test_no_descriptor_of_what_has_ended(child, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    child.communicate()
    with pytest.raises(ProcessLookupError):
        processes.open_pidfd(child.pid)
