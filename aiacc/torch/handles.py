"""Operations under way: the memory that they use, and how to get at their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from aiacc import _core
from aiacc.exceptions import CollectiveError

#: A tensor or several that an operation changes in place; or a pair: what must stay alive until it
#: is done, and its result or a function that takes the result from the core.
Entry: TypeAlias = (
    torch.Tensor
    | list[torch.Tensor]
    | tuple[object, torch.Tensor | list[Any] | Callable[[int], Any]]
)

#: By handle, until that is synchronised.
pending: dict[int, Entry] = {}


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
        The output tensor (the tensor itself for an in-place operation), a list of them for a
        grouped operation, or (output, received splits) for an all-to-all.
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
    if not isinstance(entry, tuple):
        return entry
    result = entry[1]
    return result(handle) if callable(result) else result


def tensor_of(handle: int) -> torch.Tensor:
    """`synchronize` for a handle that is under way and gives one tensor."""
    output: torch.Tensor = synchronize(handle)
    return output


def from_bytes(
    data: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor over memory that the core has given away."""
    if data.size == 0:  # no view of nothing
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.from_numpy(data).view(dtype).reshape(shape)
