"""What a process asks its system for: descriptors, room, and the end of other processes."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_PIDFD_OPEN = 434  # its number on x86-64 and ARM
_POLL_S = 0.01
_MIB = 1 << 20
#: glibc's where `ulimit -s` is unlimited; and what else a thread maps.
_STACK, _GUARD = 2 * _MIB, 1 << 16


def fill_standard_descriptors() -> None:
    """Open /dev/null as 0, 1 and 2 where they are closed, as cron and ``>&-`` leave them.

    What is opened later, a connection for one, would have that number and get what is meant for the
    terminal. Programs that this process starts find them closed, as it did.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def learn_how_children_end() -> None:
    """Take SIGCHLD as usual where it is ignored, as some supervisors and ``trap '' CHLD`` leave it.

    The kernel would keep no exit code of what this process starts, nor of what that starts.
    Threads: the main thread only.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def open_pidfd(process: int) -> int:
    """A descriptor that is readable once ``process`` has ended.

    Raises:
        ProcessLookupError: It has ended.
        OSError: This kernel or container has no such descriptors.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process)
    libc = ctypes.CDLL(None, use_errno=True)  # a Python that was built for old kernels
    descriptor = int(libc.syscall(_PIDFD_OPEN, process, 0))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def lack_of_addresses(count: int) -> str:
    """Why this process, which was refused one of ``count`` threads, lacks no thread but memory.

    "" if its limit of address space is not the reason, or there is none.
    """
    limit, stack = (
        resource.getrlimit(name)[0] for name in (resource.RLIMIT_AS, resource.RLIMIT_STACK)
    )
    if limit == resource.RLIM_INFINITY:
        return ""
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return ""
    return describe_lack(count, limit, used, _STACK if stack == resource.RLIM_INFINITY else stack)


def describe_lack(count: int, limit: int, used: int, stack: int) -> str:
    """Text about too little address space for ``count`` stacks; "" if there is enough. Pure.

    Args:
        count: Threads.
        limit: Bytes that the process may map.
        used: Bytes that it has mapped.
        stack: Bytes of the stack of a thread.
    """
    need = count * (stack + _GUARD)
    if limit - used >= need:
        return ""
    return (
        f"its address space is limited to {limit // _MIB} MiB, of which {used // _MIB} are in use "
        f"(expected {-(-need // _MIB)} MiB left, for the stacks of {count} threads); raise that "
        f"limit (ulimit -v), or lower that of a stack (ulimit -s, {stack // _MIB} MiB)"
    )


def wait_for_end(processes: Iterable[int], timeout_s: float) -> None:
    """Wait until all ``processes`` have ended, at most ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        try:
            descriptor = open_pidfd(process)
        except ProcessLookupError:
            continue
        except OSError:
            while _is_there(process) and time.monotonic() < deadline:
                time.sleep(_POLL_S)  # nothing else tells
            continue
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(math.ceil(max(0.0, deadline - time.monotonic()) * 1000))
        finally:
            os.close(descriptor)


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return True
