"""Ranks that are forked from processes which have imported what they need, in a tenth of the time.

A process forks ranks of one framework, and of one environment as far as it is read before the fork.
There are two of them, so that neighbouring ranks differ in the seed of Python's hashes, as ranks
that are started one by one do: what depends on the order of a set differs between them.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.rank_process import MESSAGE_BYTES

#: What ranks of a framework import, whatever their test.
_MODULES = {
    "torch": ("numpy", "torch", "torch._dynamo", "aiacc.torch", "pytest"),
    "tensorflow": ("numpy", "tensorflow", "aiacc.tensorflow", "pytest"),
    "numpy": ("numpy", "aiacc.array", "pytest"),
}
#: Variables that the loader, the interpreter and libraries read while they start; threads of
#: TensorFlow begin later.
_READ_EARLY = (
    *("LD_", "PYTHON", "TF_CPP_", "TF_USE_", "KERAS_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_"),
    "AIACC_TENSORFLOW_OPS",
)
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
    """A process that forks ranks, for all processes of a test run that ask for the same."""

    def __init__(self, framework: str, seed: int, early: Mapping[str, str]) -> None:
        """Connect to the process, after starting it if nobody has."""
        what = repr((_RUN, framework, seed, sorted(early.items())))
        address = f"\0ranks-{hashlib.sha256(what.encode()).hexdigest()}"
        self.process: subprocess.Popen[bytes] | None = None
        self.codes: dict[int, int] = {}
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        while self.control.connect_ex(address) != 0:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                try:
                    listener.bind(address)
                except OSError:  # somebody else is starting it
                    continue
                listener.listen(os.cpu_count() or 1)
                self.control.connect(address)
                arguments = ["--fork", str(listener.fileno()), *_MODULES[framework]]
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.rank_process", *arguments],
                    env={**os.environ, **early},
                    pass_fds=[listener.fileno()],
                    start_new_session=True,
                )
                return

    def fork(self, environment: Mapping[str, str], address: str, module: str) -> ForkedRank:
        request = pickle.dumps((dict(environment), address, module))
        socket.send_fds(self.control, [request], [0, 1, 2])
        while True:
            pid, status = self.receive()
            if status is None:
                self.codes.pop(pid, None)  # of an earlier process with this number
                return ForkedRank(pid, self)

    def receive(self) -> tuple[int, int | None]:
        message = self.control.recv(MESSAGE_BYTES)
        if not message:
            raise ConnectionResetError("the process that forks ranks has ended")
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


#: Processes of pytest-xdist share what forks ranks.
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"of {os.getpid()}"
_parents: dict[tuple[str, int, frozenset[tuple[str, str]]], _Parent] = {}


def fork(
    function: Callable[..., Any], number: int, environment: Mapping[str, str], address: str
) -> ForkedRank | None:
    """Start rank ``number`` for ``function`` as the leader of a session.

    It has this process's standard streams. None if it cannot be forked, because its module wants
    several frameworks, whose order matters.
    """
    framework = _framework_of(function)
    if framework is None:
        return None
    early = {n: v for n, v in environment.items() if n.startswith(_READ_EARLY)}
    key = framework, number % _SEEDS, frozenset(early.items())
    while True:
        parent = _parents.get(key) or _Parent(framework, number % _SEEDS, early)
        _parents[key] = parent
        try:
            return parent.fork(environment, address, function.__module__)
        except ConnectionError:  # it ends with the last one that is connected to it
            del _parents[key]
            parent.control.close()
            if parent.process is not None:
                raise


def _framework_of(function: Callable[..., Any]) -> str | None:
    """The one that the module of ``function`` imports, or whose part of aiacc; None for two."""
    names = {
        name
        for value in vars(sys.modules[function.__module__]).values()
        if isinstance(value, type(sys))
        for name in value.__name__.split(".")
    }
    if "torch" in names:
        return None if names & {"tensorflow", "keras"} else "torch"
    return "tensorflow" if names & {"tensorflow", "keras"} else "numpy"


def processes() -> set[str]:
    """Of this module, which stay from test to test."""
    return {str(parent.process.pid) for parent in _parents.values() if parent.process}


def descriptors() -> set[int]:
    """Of this module, which stay from test to test."""
    return {parent.control.fileno() for parent in _parents.values()}


@atexit.register
def _end() -> None:
    for parent in _parents.values():
        parent.control.close()
    for parent in _parents.values():
        if parent.process is not None:
            parent.process.wait()
