"""Notices processes that take themselves for what they are not, by who has started them.

Nothing tells children of ``torch.multiprocessing.spawn`` of each other, so each of them trains for
itself, in silence. Children of a shell, or of a test runner, are left in peace: they are programs
of their own, while `multiprocessing` divides one. And what a rank starts, before it is one or
later, inherits the variables that make it a rank: such children of all ranks would be a job of
their own, or part of this one.

Each child that is alone holds a name in the abstract name space of Unix sockets, and each rank a
piece of memory with a name, which others see in ``/proc``. The kernel frees both when the process
ends, however it ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

#: Stands before what tells apart jobs inside of each other, which are told the same otherwise.
CONNECTION = " by connection "
_SEAT = "aiacc rank"
#: So many, at most.
_ANCESTORS = 16

_held: list[socket.socket] = []
os.register_at_fork(after_in_child=_held.clear)
_seats: list[int] = []


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


def be_rank(told: str) -> None:
    """Note that this process is the rank that it was told to be, until `be_no_rank`.

    Args:
        told: "rank 1 of 2: ..." with what tells its job from others; "" for none.
    """
    be_no_rank()
    if told and hasattr(os, "memfd_create"):
        names = {_digest(told), _digest(told.partition(CONNECTION)[0])}
        with contextlib.suppress(OSError):
            _seats.append(os.memfd_create(f"{_SEAT} {' '.join(names)}"))


def be_no_rank() -> None:
    """The runtime of this process has ended. Idempotent."""
    for seat in _seats:
        os.close(seat)
    _seats.clear()


os.register_at_fork(after_in_child=be_no_rank)


#: What to do for a program that a rank starts and that is no rank.
_ALONE = (
    "to run the program alone set AIACC_RANK=0 and AIACC_SIZE=1 for it, or start it by a launcher "
    "of its own, without AIACC_RANK, AIACC_SIZE and AIACC_ADDR"
)
#: The same for one whose ranks meet in the store that torchrun's variables name.
ALONE_IN_TORCH = (
    "to run the program alone give its init_process_group store=torch.distributed.HashStore(), "
    "rank=0 and world_size=1, or start it by a torchrun of its own"
)


def error_of_child(told: str, *, chosen: bool, alone: str = _ALONE) -> str:
    """Why this process cannot be the rank that it was told to be: a parent or child of it is.

    Args:
        told: As for `be_rank`.
        chosen: The ranks are to find each other by that. Else they have another way, which may be
            that of another job, unless this process only imports the script of the rank.
        alone: What to do for a program that is to be no rank.

    Returns:
        "" if neither an ancestor nor a descendant is that rank.
    """
    imports = _imports_script()
    if not told or not (chosen or imports):
        return ""
    who = told.partition(":")[0]
    # A program that outlives the shell in which a rank has started it is in the rank's session yet.
    above = {*ancestors(), str(os.getsid(0))} - {str(os.getpid())}
    rank = next((pid for pid in above if _is_rank(pid, told)), None)
    if rank is None:
        child = next((pid for pid in _descendants() if _is_rank(pid, told)), None)
        if child is None:
            return ""
        return (
            f"[bootstrap] {who} is process {child}, which this one has started, and which has "
            f"inherited its variables (expected one process for each rank); {alone}"
        )
    text = f"[bootstrap] {who} is process {rank}, which has started this one"
    if imports:
        return (
            f"{text} as a worker of multiprocessing, of a DataLoader perhaps; that imports the "
            "script, and so runs it again (expected a script that does nothing then); put what it "
            'does below `if __name__ == "__main__":`'
        )
    return (
        f"{text}; this one has inherited its variables (expected one process for each rank); "
        f"{alone}"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _is_rank(pid: str, told: str) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = str(entry.readlink())
                if _SEAT in name and _digest(told) in name:
                    return True
    return False


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
        if process == "0":
            return
        yield process


def _descendants() -> Iterator[str]:
    """Process ids of the children of this process, of their children and so on."""
    parents = [str(os.getpid())]
    while parents:
        for children in Path(f"/proc/{parents.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found = children.read_text().split()
                parents += found
                yield from found


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
