"""What a rank has open and running, by formula and by counting; docs/network.md has the formula."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

#: Beside the sockets to other ranks: where they connect.
_LISTENERS = 1


#: Ranks of a host, if there are so many.
PER_HOST = 8
#: By which the loop thread of a rank is woken, if it shares its host.
_BELLS = 1


def partners(rank: int, size: int) -> int:
    """Ranks that one exchanges with in recursive doubling, of ``size``."""
    power = 1 << (size.bit_length() - 1)
    if rank >= power:
        return 1
    return power.bit_length() - 1 + (rank + power < size)


def engine_sockets(rank: int, size: int, lanes: int, *, exchanged: bool) -> int:
    """Sockets of one engine `tcp`: rings, mesh, and pairs after the first all-to-all."""
    return 2 * lanes + partners(rank, size) + (size - 1 if exchanged else 0)


def sockets(rank: int, size: int, lanes: int, *, exchanged: bool) -> int:
    """Sockets of a rank of a job with engine `tcp`, no process sets, and 8 ranks on each host."""
    host, local = divmod(rank, PER_HOST)
    # To the others of the host and to other hosts; or to the rank that speaks for this one.
    others = min(size, PER_HOST) - 1 + partners(host, -(-size // PER_HOST))
    engine = engine_sockets(rank, size, lanes, exchanged=exchanged)
    return _LISTENERS + _BELLS + 2 * (1 if local else others) + engine


def threads(lanes: int, *, sets: bool) -> int:
    """Threads of a rank: loop, heartbeats, lanes, express lane, and the one that connects sets."""
    return 2 + lanes + 1 + sets


def memory_kib(lanes: int, *, sets: int) -> int:
    """Most that the core takes of a rank, with units of 1 MiB, on host memory with engine `tcp`."""
    pack = (lanes + 1) * 1024
    blocks = (1 + sets) * lanes * 512
    return pack + blocks + 1024 + sets * 256


def resident_kib() -> int:
    """Memory of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


def peak_bytes(call: Callable[[], object]) -> int:
    """Memory of Python and NumPy that a call takes at most."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def descriptors() -> dict[int, str]:
    """What this process has open, by number."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found[int(entry.name)] = str(entry.readlink())
    return found


def open_sockets() -> int:
    """Sockets of this process."""
    return sum(what.startswith("socket:") for what in descriptors().values())


def tcp_sockets(*, listening: bool = False) -> Iterator[socket.socket]:
    """TCP connections of this process, or sockets that listen; each is closed after its turn."""
    for number, what in descriptors().items():
        if not what.startswith("socket:"):
            continue
        with socket.socket(fileno=os.dup(number)) as held:
            if held.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            listens = bool(held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            if held.type & socket.SOCK_STREAM and listens == listening:
                yield held


def running_threads() -> int:
    """Threads of this process."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def threads_after_join(expected: int) -> int:
    """The same, after threads were joined: join returns before the kernel takes a thread off its
    list, which has no event, so this reads until there are at most `expected`, for 10 s at most.
    """
    deadline = time.monotonic() + 10
    while (number := running_threads()) > expected and time.monotonic() < deadline:
        os.sched_yield()
    return number
