"""Processes of this host that may be ranks of another job with the same address.

Without a token nothing that ranks say about themselves tells two jobs apart. What does is that a
job has one process for each number: so before the ranks of a job are told that they are complete,
their host is searched for others that were started for the same address, and these are waited for.
If one comes, a number is there twice, which is an error on every rank of both jobs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from aiacc.bootstrap.address import split_address
from aiacc.exceptions import BootstrapError

#: A process that is older than this one by more has had the time to come.
_TOGETHER_S = 30.0
_PROC = Path("/proc")


class Rival(NamedTuple):
    """A process that may come as a rank of another job."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})"


def process_space() -> str:
    """Where the process ids that this process sees are valid; "" if that is not known."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def find(address: tuple[str, int], members: Collection[int]) -> list[Rival]:
    """Who else of this user runs the same interpreter and was started for ``address``.

    Args:
        address: Host and port; what has an AIACC_TOKEN or no number of its own is none of them.
        members: Process ids of the job. What they have started, or what has started them, is left
            out: wrappers and workers have their environment, too.
    """
    parents: dict[int, int] = {}
    starts: dict[int, float] = {}
    for entry in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may contain anything.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            starts[int(entry.name)] = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    oldest = starts.get(os.getpid(), 0.0) - _TOGETHER_S
    above = {pid for member in members for pid in _line(member, parents)}
    found = []
    for pid, start in starts.items():
        if start < oldest or pid in above or not _line(pid, parents).isdisjoint(members):
            continue
        with contextlib.suppress(OSError):
            process = _PROC / str(pid)
            if _is_like_this_one(process) and _was_told(process, address):
                found.append(Rival(pid, (process / "comm").read_text().strip()))
    return found


def _line(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and all that it descends from."""
    line: set[int] = set()
    while pid in parents and pid not in line:
        line.add(pid)
        pid = parents[pid]
    return line


def _is_like_this_one(process: Path) -> bool:
    if process.stat().st_uid != os.getuid():
        return False
    mine = _PROC / "self"
    return all(
        (process / link).readlink() == (mine / link).readlink() for link in ("exe", "ns/pid")
    )


def _was_told(process: Path, address: tuple[str, int]) -> bool:
    text = (process / "environ").read_bytes().decode(errors="replace")
    told = dict(entry.partition("=")[::2] for entry in text.split("\0"))
    if told.get("AIACC_TOKEN") or not (told.get("AIACC_RANK") or told.get("HOROVOD_RANK")):
        return False
    try:
        return split_address(told.get("AIACC_ADDR", "")) == address
    except BootstrapError:
        return False
