"""Notices processes that take themselves for what they are not, by who has started them.

Nothing tells children of ``torch.multiprocessing.spawn`` of each other, so each of them trains for
itself, in silence. Children of a shell, or of a test runner, are left in peace: they are programs
of their own, while `multiprocessing` divides one. And what a rank starts inherits the variables
that make it a rank: such children of all ranks would be a job of their own, or part of this one.

Each rank, and each such child, holds a name in the abstract name space of Unix sockets, which the
kernel frees when the process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

#: Stands before what tells apart jobs inside of each other, which are told the same otherwise.
CONNECTION = " by connection "
#: So many, at most.
_ANCESTORS = 16

_held: list[socket.socket] = []
_seats: list[socket.socket] = []
for _names in (_held, _seats):
    os.register_at_fork(after_in_child=_names.clear)


def warning_about_siblings() -> str:
    """Note that this process is alone in its job; what to tell the user, "" for nothing.

    Says something in the second such child of a parent that is alive at a time, not in later ones.
    Never blocks.
    """
    parent = _multiprocessing_parent()
    if parent is None or _held:
        return ""
    name = f"aiacc/alone/{os.getuid()}/{parent}/{_start_of(parent)}"
    if _take(f"{name}/first", _held) or not _take(f"{name}/warned", _held):
        return ""
    return (
        f"[bootstrap] several processes that process {parent} has started by multiprocessing are "
        "each a job of one rank, for nothing tells them of each other (expected one job, in most "
        "cases). Either start the script by `aiaccrun -np N` in place of multiprocessing, or set "
        "AIACC_RANK, AIACC_SIZE and AIACC_ADDR=127.0.0.1:<a free port> in os.environ of each "
        "process before init(). If they shall be alone, set AIACC_RANK=0 and AIACC_SIZE=1"
    )


def be_rank(told: str) -> None:
    """Note that this process is the rank that it was told to be, until `be_no_rank`.

    Args:
        told: "rank 1 of 2: ..." with what tells its job from others; "" for none.
    """
    be_no_rank()
    for text in {told, told.partition(CONNECTION)[0]} if told else ():
        _take(_seat(os.getpid(), text), _seats)


def be_no_rank() -> None:
    """The runtime of this process has ended. Idempotent."""
    for seat in _seats:
        seat.close()
    _seats.clear()


def error_of_child(told: str, *, chosen: bool) -> str:
    """Why this process cannot be the rank that it was told to be: one that has started it is.

    Args:
        told: As for `be_rank`.
        chosen: The ranks are to find each other by that. Else they have another way, which may be
            that of another job, unless this process only imports the script of the rank.

    Returns:
        "" if no ancestor is that rank.
    """
    imports = _imports_script()
    if not told or not (chosen or imports):
        return ""
    rank = next((pid for pid in ancestors() if _is_taken(_seat(int(pid), told))), None)
    if rank is None:
        return ""
    text = f"[bootstrap] {told.partition(':')[0]} is process {rank}, which has started this one"
    if imports:
        return (
            f"{text} as a worker of multiprocessing, of a DataLoader perhaps; that imports the "
            "script, and so runs it again (expected a script that does nothing then); put what it "
            'does below `if __name__ == "__main__":`'
        )
    return (
        f"{text}; this one has inherited its variables (expected one process for each rank); set "
        "AIACC_RANK=0 and AIACC_SIZE=1 for a program that a rank starts to be alone, or start it "
        "by a launcher of its own, without AIACC_RANK, AIACC_SIZE and AIACC_ADDR"
    )


def _seat(pid: int, told: str) -> str:
    digest = hashlib.sha256(told.encode()).hexdigest()[:32]
    return f"aiacc/rank/{os.getuid()}/{pid}/{_start_of(pid)}/{digest}"


def _imports_script() -> bool:
    """Whether multiprocessing makes this process import the script of its parent now."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and getattr(process.current_process(), "_inheriting", False)


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
    if _imports_script():
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


def _is_taken(name: str) -> bool:
    probe: list[socket.socket] = []
    free = _take(name, probe)
    for holder in probe:
        holder.close()
    return not free


def _take(name: str, held: list[socket.socket]) -> bool:
    """Hold a name, at most as long as this process lives; whether nobody else does."""
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0{name}")
    except OSError:
        holder.close()
        return False
    held.append(holder)
    return True
