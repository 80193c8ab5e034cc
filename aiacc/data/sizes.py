"""Amounts of memory: as users write them, and how much there is."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

#: Where files are in memory.
SHARED_MEMORY = Path("/dev/shm")
#: Of all memory; more of it in a cache, and the kernel would end processes for the rest. Of a file
#: system, too.
_MOST_SHARE = 0.75
#: Bytes of `SHARED_MEMORY` that are left to others at least, however small it is: the batches of
#: DataLoader workers are there, and they die where these find no room.
_LEAST_FREE = 1 << 30
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY = {f"{unit}i": 1024**power for power, unit in enumerate(_UNITS) if unit}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


def parse_bytes(size: int | str, what: str) -> int:
    """Bytes of "8GB" (10^9), "8GiB" (2^30), "512 MB" or a number.

    Args:
        size: Number with a unit, or a number of bytes.
        what: What is said in the error.

    Raises:
        ValueError: It is none.
    """
    found = _SIZE.fullmatch(str(size))
    given: object = size  # a user's
    if isinstance(given, float) and not given.is_integer():
        found = None
    units = {**_UNITS, **_BINARY}
    if found is None or found[2].lower() not in units or isinstance(size, bool):
        raise ValueError(f'{what}={size!r} (expected bytes, such as 1000000, "8GB" or "8GiB")')
    return int(float(found[1]) * units[found[2].lower()])


def folder_and_bytes(
    tier: int | str | tuple[str | Path, int | str], what: str, default: Path | None = None
) -> tuple[Path, int]:
    """A tier as users give it: how many bytes in which folder.

    Raises:
        ValueError: It is neither a size, where there is a default folder, nor a folder and a size.
    """
    if isinstance(tier, tuple) and len(tier) == 2 and isinstance(tier[0], str | os.PathLike):
        return Path(tier[0]).expanduser(), parse_bytes(tier[1], what)
    if default is None:
        raise ValueError(f'{what}={tier!r} (expected a folder and a size: ("/scratch", "200GB"))')
    return default, parse_bytes(tier, what)


def memory_there_is(root: Path = Path("/")) -> int:
    """Bytes that the processes here may have together; 0 if nobody says.

    The machine's, or less where a container or a job has less (cgroups of version 1 and 2).

    Args:
        root: Of the file system.
    """
    limits = []
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        groups, name = root / "sys/fs/cgroup", "memory.max"
        if controllers:
            groups, name = groups / "memory", "memory.limit_in_bytes"
            if "memory" not in controllers.split(","):
                continue
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for depth in range(len(parts) + 1):
            for text in _lines(groups.joinpath(*parts[:depth], name)):
                limits += [int(text)] if text.isdigit() else []  # "max"
    return min(limits, default=0)


def room_there_is(folder: Path) -> tuple[int, bool]:
    """Bytes of the file system that a folder is on, full or not, and whether others use it.

    0 bytes if nobody says.
    """
    try:
        system = os.statvfs(folder)
        return system.f_blocks * system.f_frsize, is_shared(folder.stat().st_dev)
    except OSError:
        return 0, False


def left_free(room: int) -> int:
    """Bytes of a `SHARED_MEMORY` of ``room`` bytes that caches leave to others. Pure."""
    return min(room, max(_LEAST_FREE, int((1 - _MOST_SHARE) * room)))


def is_shared(device: int) -> bool:
    """Whether a device is the file system of `SHARED_MEMORY`, which everybody uses."""
    try:
        return device == SHARED_MEMORY.stat().st_dev
    except FileNotFoundError:
        return False


def leaves_room(descriptor: int, size: int) -> bool:
    """Whether a file may take ``size`` bytes more of its file system in memory.

    What `left_free` says stays free, however many caches, jobs and others use it. Other file
    systems are the business of who has given a folder there.
    """
    system = os.fstatvfs(descriptor)
    free = system.f_bavail * system.f_frsize - size
    is_others = not is_shared(os.fstat(descriptor).st_dev)
    return is_others or free >= left_free(system.f_blocks * system.f_frsize)


def is_backed(descriptor: int, begin: int, size: int) -> bool:
    """Whether bytes of a file have their memory already, so that writing them takes no more."""
    try:
        return os.lseek(descriptor, begin, os.SEEK_HOLE) >= begin + size
    except OSError:  # behind its end, or nobody knows
        return False


def most_memory(there_is: int, room: int, is_shared: bool) -> float:
    """Bytes that a cache may have. Pure.

    Args:
        there_is: Bytes of memory; 0: not known.
        room: Bytes of the file system that it is in; 0: not known.
        is_shared: Whether that is `SHARED_MEMORY`.
    """
    of_memory = _MOST_SHARE * there_is or float("inf")
    of_room = room - left_free(room) if is_shared else _MOST_SHARE * room
    return min(of_memory, of_room if room else float("inf"))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
