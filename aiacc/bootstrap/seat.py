"""The seat of rank 0 at an address: one process of a host has it, for as long as its job lives.

The port of the rendezvous is only open while ranks gather. So without a secret, ranks of a second
job with the same address could meet each other there a moment later, or those of the first one. The
seat is a name in the abstract name space of Unix sockets, which the kernel frees with the process.
Whoever finds it taken connects to it, which tells its holder.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import select
import socket
import struct
from pathlib import Path

from aiacc.bootstrap.provider import Backoff, Deadline

_log = logging.getLogger("aiacc.bootstrap")

_CREDENTIALS = struct.Struct("iII")  # of a peer: process, user, group
_BACKLOG = 8


class Seat:
    """One rank 0's claim to an address. Threads: one."""

    def __init__(self, address: str, token: str) -> None:
        digest = hashlib.sha256(f"{address} {token}".encode()).hexdigest()[:32]
        self._name = f"\0aiacc/rank0/{digest}"
        self._socket: socket.socket | None = None

    def fileno(self) -> int:
        """Descriptor that becomes readable when somebody else wants the seat; -1 without one."""
        return -1 if self._socket is None else self._socket.fileno()

    def take(self) -> bool:
        """Whether this process has the seat now, or no other can have it."""
        if self._socket is not None or self._name in _kept:
            return True
        holder = socket.socket(socket.AF_UNIX)
        holder.setblocking(False)
        try:
            holder.bind(self._name)
            holder.listen(_BACKLOG)
        except OSError as error:
            holder.close()
            return error.errno != errno.EADDRINUSE  # a system without such names has no seats
        self._socket = holder
        return True

    def is_taken(self) -> bool:
        """Whether some process has the seat. Does not tell it."""
        if self._name in _kept:
            return True
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.bind(self._name)
            except OSError as error:
                return error.errno == errno.EADDRINUSE
        return False

    def wait_for(self, deadline: Deadline) -> str:
        """Wait until the seat is free and take it; "" or which process has it at the deadline.

        Blocks: until then. The process that has the seat is told at once.
        """
        backoff = Backoff()
        holder = "another process"
        while not self.take():
            with socket.socket(socket.AF_UNIX) as link:
                link.setblocking(False)
                try:
                    link.connect(self._name)
                except OSError:  # it is just gone, not yet there, or told by many already
                    backoff.pause(deadline)
                else:
                    holder = _describe(_peer(link)[0])
                    poller = select.poll()
                    poller.register(link, select.POLLIN)  # and its end
                    poller.poll(deadline.left_s() * 1000)
            if deadline.passed():
                return "" if self.take() else holder
        return ""

    def rivals(self) -> list[str]:
        """Processes of this user that wanted the seat since the last call."""
        found = []
        while self._socket is not None:
            try:
                link, _ = self._socket.accept()
            except OSError:
                break
            with link:
                pid, user = _peer(link)
                if user == os.getuid() and pid != os.getpid():
                    found.append(_describe(pid))
        return found

    def keep(self) -> None:
        """Hold the seat until `release_all`, also when this object is closed."""
        if self._socket is not None:
            _kept[self._name] = self._socket
            self._socket = None

    def close(self) -> None:
        """Give the seat up unless it is kept. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def release_all() -> None:
    """Give up what is kept, and say who was refused meanwhile. Idempotent."""
    for holder in _kept.values():
        refused = _refused(holder)
        if refused:
            _log.warning(
                "[bootstrap] while this job ran, another rank 0 came to its address and was "
                "refused: %s. If both were started together, ranks of its job may have been in "
                "this one; give each job an AIACC_ADDR or an AIACC_TOKEN of its own",
                ", ".join(refused),
            )
    _forget_all()


def _forget_all() -> None:
    for holder in _kept.values():
        holder.close()
    _kept.clear()


def _refused(holder: socket.socket) -> list[str]:
    """Processes of this user that wanted the seat and have given up; the others still wait."""
    found: list[str] = []
    while True:
        try:
            link, _ = holder.accept()
        except OSError:
            return found
        with link:
            link.setblocking(False)
            pid, user = _peer(link)
            try:
                gone = not link.recv(1)
            except OSError:
                gone = False
            if gone and user == os.getuid() and pid != os.getpid():
                found.append(_describe(pid))


def _peer(link: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user


def _describe(pid: int) -> str:
    try:
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return f"process {pid}"


#: By name. A child of a fork has no part in it.
_kept: dict[str, socket.socket] = {}
os.register_at_fork(after_in_child=_forget_all)
