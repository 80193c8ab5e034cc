"""Operations under way: the memory that they use, and how to get at their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aiacc import _core
from aiacc.array.arrays import Array
from aiacc.exceptions import CollectiveError


class Pending(NamedTuple):
    """What belongs to a handle that was not synchronised yet."""

    #: What the core reads and writes, so that it stays alive.
    kept: object
    #: What `synchronize` returns, or a function that takes it from the core.
    result: Any | Callable[[int], Any]


#: By handle.
pending: dict[int, Pending] = {}


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once. Never blocks.

    Raises:
        ValueError: The handle was synchronised before, or never existed.
    """
    return _core.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result.

    Blocks: until the operation is done or failed.

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
    try:
        _core.wait(handle)
    except (CollectiveError, ValueError):  # else an interrupt: the core still uses the memory
        pending.pop(handle, None)
        raise
    del pending[handle]
    return entry.result(handle) if callable(entry.result) else entry.result


def from_bytes(data: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array over memory that the core has given away."""
    return data.view(dtype).reshape(shape)


def address_of(array: Array) -> int:
    """Address of an array's memory."""
    address: int = array.__array_interface__["data"][0]
    return address
