"""Operations under way: the memory that they use, and how to get at their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from aiacc import _core, arguments
from aiacc.exceptions import CollectiveError

#: What is known of an operation until it is synchronised: how its front-end waits for a handle;
#: the memory that the core uses, which so stays alive, and which that function is called with; the
#: result; or, if that is only known at the end, what takes it from the core. (A plain tuple, which
#: takes a tenth of the time of a named one.)
Pending: TypeAlias = tuple[Callable[[int, Any], object], Any, Any, Callable[[int], Any] | None]

#: By handle, of all front-ends: handles are unique in the process.
pending: dict[int, Pending] = {}


def release_memory() -> None:
    """Let go of the memory of all operations, which a runtime that has ended does not use any more.

    `synchronize` goes on to raise an error for them.
    """
    pending.update(dict.fromkeys(list(pending), (_lost, None, None, None)))


def _lost(handle: int, _memory: None) -> None:
    _core.wait(handle)


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once. Never blocks.

    Of memory on a CUDA device that means that the work is queued, not that the GPU has done it.

    Raises:
        TypeError: It is no handle.
        ValueError: The handle was synchronised before, or never existed.
    """
    try:
        return _core.poll(handle)
    except TypeError as error:
        raise arguments.explained(error, locals()) from None


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result.

    Blocks: until the operation is done or failed. On a CUDA device, done means queued: the current
    stream of the tensors' library waits for the result, and the host does not.

    Returns:
        The output (what was given, for an in-place operation), a list of them for a grouped
        operation, or what `alltoall` returns with splits.
        None for a handle that was synchronised before or never existed, as in Horovod.

    Raises:
        TypeError: It is no handle.
        ValueError: It is a number that no handle can have.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    try:
        entry = pending.get(handle)
    except TypeError:  # it has no hash
        entry = None
    if entry is None:
        arguments.check({"handle": handle})
        return None
    wait, memory, result, take = entry
    try:
        wait(handle, memory)
    except (CollectiveError, ValueError):  # else an interrupt: the core still uses the memory
        pending.pop(handle, None)
        raise
    del pending[handle]
    return result if take is None else take(handle)
