"""Ranks that are forked from processes which have imported their framework, in a tenth of the time.

A process forks ranks of one framework and one environment, but for the variables that are read
after that import.
There are two of them, so that neighbouring ranks differ in the seed of Python's hashes, as ranks
that are started one by one do: what depends on the order of a set differs between them.
"""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.rank_process import MESSAGE_BYTES

#: Read after that import: what is for our code or a rank's function; and what pytest changes.
_READ_LATE = ("AIACC_", "HOROVOD_", "PYTEST_")
_SEEDS = 2


class ForkedRank:
    """As much of `subprocess.Popen` as `tests.support.ranks` needs."""

    def __init__(self, pid: int, parent: _Parent) -> None:
        """Take the process ``pid`` that ``parent`` has forked."""
        self.pid = pid
        self._parent = parent

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        self._parent.listen()
        return self._parent.codes.get(self.pid)

    def wait(self) -> int:
        """The same. Blocks until the process has ended."""
        while self.pid not in self._parent.codes:
            self._parent.receive()
        return self._parent.codes[self.pid]


class _Parent:
    """A process that forks ranks."""

    def __init__(self, framework: str, environment: Mapping[str, str]) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = ["--fork", framework, str(theirs.fileno())]
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.rank_process", *arguments],
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.codes: dict[int, int] = {}

    def fork(self, environment: Mapping[str, str], address: str) -> ForkedRank:
        request = pickle.dumps((dict(environment), address))
        socket.send_fds(self.control, [request], [0, 1, 2])
        while True:
            pid, status = self.receive()
            if status is None:
                self.codes.pop(pid, None)  # of an earlier process with this number
                return ForkedRank(pid, self)

    def receive(self) -> tuple[int, int | None]:
        message = self.control.recv(MESSAGE_BYTES)
        assert message, "the process that forks ranks has ended"
        pid, status = pickle.loads(message)
        if status is not None:
            self.codes[pid] = os.waitstatus_to_exitcode(status)
        return pid, status

    def listen(self) -> None:
        self.control.setblocking(False)
        try:
            while True:
                self.receive()
        except BlockingIOError:
            pass
        finally:
            self.control.setblocking(True)

    def end(self) -> None:
        self.control.close()
        self.process.wait()


#: Each keeps a framework in memory. Those that were not used for the longest time end first.
_MOST = 10
_parents: dict[tuple[int, str, frozenset[tuple[str, str]]], _Parent] = {}


def fork(framework: str, number: int, environment: Mapping[str, str], address: str) -> ForkedRank:
    """Start rank ``number`` as the leader of a session, with this process's standard streams."""
    early = {name: value for name, value in environment.items() if not name.startswith(_READ_LATE)}
    key = number % _SEEDS, framework, frozenset(early.items())
    parent = _parents.pop(key, None)
    if parent is None:
        if len(_parents) == _MOST:
            _parents.pop(next(iter(_parents))).end()
        parent = _Parent(framework, early)
    _parents[key] = parent  # the last one now
    return parent.fork(environment, address)


def framework_of(function: Callable[..., Any]) -> str | None:
    """The one that the module of ``function`` imports; None also for two, whose order matters."""
    modules = {
        getattr(value, "__name__", "").partition(".")[0]
        for value in vars(sys.modules[function.__module__]).values()
        if isinstance(value, type(sys))
    }
    if "torch" in modules:
        return None if modules & {"tensorflow", "keras"} else "torch"
    return "tensorflow" if "tensorflow" in modules else None


def processes() -> set[str]:
    """Of this module, which stay from test to test."""
    return {str(parent.process.pid) for parent in _parents.values()}


def descriptors() -> set[int]:
    """Of this module, which stay from test to test."""
    return {parent.control.fileno() for parent in _parents.values()}


@atexit.register
def _end() -> None:
    for parent in _parents.values():
        parent.end()
