"""Operations that move no tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from aiacc import _core
from aiacc.collectives import submission
from aiacc.process_sets import ProcessSet, global_process_set

_observers: list[weakref.WeakMethod[Callable[[], None]]] = []


def after_join(method: Callable[[], None]) -> None:
    """Call the bound ``method`` after every completed `join`, as long as its object lives.

    Ranks have done different numbers of steps then, and know it.
    """
    _observers.append(weakref.WeakMethod(method))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait for all ranks.

    Collective: every rank.
    Blocks: until every rank has called it.

    Raises:
        CollectiveError: Not initialised, or a rank was lost.
    """
    _core.wait(submission.barrier(process_set).start(0, 0))


def join(device: int = -1) -> int:
    """Tell the other ranks that this one has no more data, and wait until all have none.

    Until then this rank takes part in the all-reduces of the others with zeros; Average still
    divides by the number of all ranks. Other operations of the others fail at once.

    Collective: every rank, once each, when its data has ended.
    Blocks: until every rank has joined.

    Args:
        device: Accepted because Horovod has it.

    Returns:
        The rank that joined last.

    Raises:
        CollectiveError: Not initialised, or a rank was lost.
    """
    del device
    handle = submission.join().start(0, 0)
    _core.wait(handle)
    last = _core.take_join(handle)
    _observers[:] = [reference for reference in _observers if reference() is not None]
    for reference in list(_observers):
        method = reference()
        if method is not None:
            method()
    return last
