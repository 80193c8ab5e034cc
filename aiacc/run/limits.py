"""How many ranks this machine can run at all, asked before the first of them is started."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Descriptors of a rank here: one of its process, and two pipes unless it writes to files.
_OF_PROCESS, _OF_PIPES = 1, 2
#: For this process itself, and while a rank is started.
_OWN = 32
#: More for each core are hardly meant; the largest jobs of our tests have fewer.
_MANY_PER_CORE = 64
#: Where nothing is a limit.
_MOST = 1 << 62


def check(ranks: int, cores: int, *, to_files: bool, root: Path = Path("/")) -> str:
    """What to say of so many ranks on this machine, perhaps nothing.

    Args:
        ranks: Their number.
        cores: That they share.
        to_files: What they print goes to files.
        root: Holds ``proc`` and ``sys``.

    Raises:
        ValueError: The machine has no room for so many processes or descriptors.
    """
    room, limit, remedy = min(_rooms(to_files, root))
    if ranks > room:
        raise ValueError(
            f"-np {ranks} on this machine (expected at most {room}, by {limit}); {remedy}, start "
            "fewer ranks, or use more hosts (--mpi)"
        )
    if ranks > _MANY_PER_CORE * cores:
        return f"-np {ranks} on {cores} cores: {ranks // cores} ranks share each of them"
    return ""


def _rooms(to_files: bool, root: Path) -> Iterator[tuple[int, str, str]]:
    """Most ranks, by which limit, and who sets that. A rank is one process at least."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    each = _OF_PROCESS + (0 if to_files else _OF_PIPES)
    room = (files - _OWN) // each if files != resource.RLIM_INFINITY else _MOST
    yield max(room, 0), f"{files} open files, {each} for each rank", "raise that (ulimit -n)"
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes != resource.RLIM_INFINITY and os.geteuid() != 0:
        yield processes, f"{processes} processes of a user", "raise that (ulimit -u)"
    for name in ("pid_max", "threads-max"):
        with suppress(OSError, ValueError):
            number = int((root / "proc/sys/kernel" / name).read_text())
            yield number, f"kernel.{name}", "raise that (sysctl)"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            base = root / "sys/fs/cgroup" / controllers  # "" in version 2
            for folder in (base / path[1:], base):  # it may be that of the container
                with suppress(OSError, ValueError):  # "max" is no limit
                    number = int((folder / "pids.max").read_text())
                    yield number, f"{number} processes of the container (pids.max)", "raise that"
