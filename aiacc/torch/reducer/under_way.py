"""What reducers have under way, and what those that are gone have left so."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from aiacc import _core
from aiacc.exceptions import CollectiveError
from aiacc.torch.adapter import wait
from aiacc.torch.reducer.bucket import Bucket, InFlight, Left

#: An operation, the gradients that have left with it, and their bucket.
UnderWay: TypeAlias = tuple[InFlight, list[Left], Bucket]

#: Were its memory freed, the core would write to that of others.
_left_behind: list[deque[UnderWay]] = []


def leave(under_way: deque[UnderWay]) -> None:
    """Keep the memory of what is under way until it is done. Never blocks."""
    _left_behind.append(under_way.copy())


def forget_what_is_done() -> None:
    """Never blocks."""
    _left_behind[:] = [in_flight for in_flight in _left_behind if _is_under_way(in_flight)]


def _is_under_way(in_flight: deque[UnderWay]) -> bool:
    while in_flight:
        (handle, used, *_), *_ = in_flight[0]
        try:
            if not _core.poll(handle):
                return True
            wait(handle, used)
        except (CollectiveError, ValueError):  # it has failed, or ended with its job
            pass
        in_flight.popleft()
    return False
