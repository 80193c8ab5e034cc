"""Notices processes of one `multiprocessing` parent that have each started a job of one rank.

Nothing tells children of ``torch.multiprocessing.spawn`` of each other, so each of them trains for
itself, in silence. Children of a shell, or of a test runner, are left in peace: they are programs
of their own, while `multiprocessing` divides one.

Each such child holds a name in the abstract name space of Unix sockets, which the kernel frees
when the process ends, however it ends.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

#: So many, at most.
_ANCESTORS = 16

_held: list[socket.socket] = []
os.register_at_fork(after_in_child=_held.clear)


def warning_about_siblings() -> str:
    """Note that this process is alone in its job; what to tell the user, "" for nothing.

    Says something in the second such child of a parent that is alive at a time, not in later ones.
    Never blocks.
    """
    parent = _multiprocessing_parent()
    if parent is None or _held:
        return ""
    name = f"aiacc/alone/{os.getuid()}/{parent}/{_start_of(parent)}"
    if _take(f"{name}/first") or not _take(f"{name}/warned"):
        return ""
    return (
        f"[bootstrap] several processes that process {parent} has started by multiprocessing are "
        "each a job of one rank, for nothing tells them of each other (expected one job, in most "
        "cases). Either start the script by `aiaccrun -np N` in place of multiprocessing, or set "
        "AIACC_RANK, AIACC_SIZE and AIACC_ADDR=127.0.0.1:<a free port> in os.environ of each "
        "process before init(). If they shall be alone, set AIACC_RANK=0 and AIACC_SIZE=1"
    )


def ancestors() -> Iterator[str]:
    """Process ids of the parent of this process, of its parent and so on."""
    process = "self"
    for _ in range(_ANCESTORS):
        try:
            # The name in brackets may contain anything; the parent is the second field after it.
            process = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            return
        if process in ("0", "1"):
            return
        yield process


def _multiprocessing_parent() -> int | None:
    """Process id of the parent if `multiprocessing` made this process to call a function."""
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return None
    # While a child still imports the script of its parent, it says nothing about itself: workers of
    # a DataLoader do so, too, for a script that initialises outside of `if __name__ == ...`.
    if getattr(process.current_process(), "_inheriting", False):
        return None
    parent = process.parent_process()
    return None if parent is None else int(parent.pid)


def _start_of(pid: int) -> str:
    """When a process began, so that its number means no later one; "" if that is not known."""
    try:
        # The name in brackets may contain anything; this is the 20th field after it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _take(name: str) -> bool:
    """Hold a name for as long as this process lives; whether nobody else does."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0{name}")
    except OSError:
        holder.close()
        return False
    _held.append(holder)
    return True
