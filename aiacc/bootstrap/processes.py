"""Waiting for the end of processes of this host that are no children of this one."""

from __future__ import annotations

import ctypes
import math
import os
import select
import time
from collections.abc import Iterable

_PIDFD_OPEN = 434  # its number on x86-64 and ARM
_POLL_S = 0.01


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
