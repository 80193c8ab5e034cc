"""Operations under way: the memory that they use, and how to get at their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from aiacc import _core
from aiacc.array.adapter import View, address_of
from aiacc.exceptions import CollectiveError


class Pending(NamedTuple):
    """What belongs to a handle that was not synchronised yet."""

    #: What the core reads, and may write, so that it stays alive.
    kept: list[View]
    #: What `synchronize` returns, or a function that takes it from the core.
    result: Any | Callable[[int], Any]


#: By handle.
pending: dict[int, Pending] = {}


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once. Never blocks.

    On a CUDA device that means that the work is queued, not that the GPU has done it.

    Raises:
        ValueError: The handle was synchronised before, or never existed.
    """
    return _core.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result.

    Blocks: until the operation is done or failed. On a CUDA device, done means queued: the stream
    that the array's library uses now waits for the result, and the host does not.

    Returns:
        The output array (for an in-place operation what was given to it), a list of them for a
        grouped operation, or (output, received splits) for an all-to-all that was given splits.
        None for a handle that was synchronised before or never existed, as in Horovod.

    Raises:
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    entry = pending.get(handle)
    if entry is None:
        return None
    first = entry.kept[0]
    try:
        if first.place[0] < 0:
            _core.wait(handle)
        else:
            _core.wait(handle, first.stream_now())
    except (CollectiveError, ValueError):  # else an interrupt: the core still uses the memory
        pending.pop(handle, None)
        raise
    del pending[handle]
    return entry.result(handle) if callable(entry.result) else entry.result


def take_output(handle: int, like: View) -> Any:
    """What a finished all-gather produced, as an array like the one that was given."""
    return take_outputs(handle, [like])[0]


def take_outputs(handle: int, likes: list[View]) -> list[Any]:
    """What a finished all-gather of several arrays produced, as arrays like those given."""
    if likes[0].place[0] < 0:
        return [
            data.view(like.dtype).reshape(shape)
            for (data, shape), like in zip(_core.take_outputs(handle), likes, strict=True)
        ]
    return _taken(handle, likes)[0]


def take_alltoall(handle: int, like: View) -> tuple[Any, tuple[int, ...]]:
    """What a finished all-to-all produced, and the rows received from every rank."""
    if like.place[0] < 0:
        data, shape, received = _core.take_alltoall(handle)
        return data.view(like.dtype).reshape(shape), received
    (output,), received = _taken(handle, [like])
    return output, received


def _taken(handle: int, likes: list[View]) -> tuple[list[Any], tuple[int, ...]]:
    """The core's output in memory of the arrays' library, whose size is known only now."""
    shapes = _core.output_shapes(handle)
    outputs = [like.empty(shape) for like, shape in zip(likes, shapes, strict=True)]
    addresses = tuple(map(address_of, outputs))
    return outputs, _core.take_into(handle, addresses, likes[0].stream_now())
