"""Operations under way: the memory that they use, and how to get at their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from aiacc import _core
from aiacc.exceptions import CollectiveError
from aiacc.torch.adapter import wait

#: A tensor that an operation changes in place; or a pair: what it reads, and its result or a
#: function that takes the result from the core. All of it stays alive until the operation is done.
Entry: TypeAlias = (
    torch.Tensor
    | tuple[
        torch.Tensor | list[torch.Tensor],
        torch.Tensor | list[torch.Tensor] | Callable[[int], Any],
    ]
)

#: By handle, until that is synchronised.
pending: dict[int, Entry] = {}


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once. Never blocks.

    Of CUDA tensors that means that the work is queued, not that the GPU has done it.

    Raises:
        ValueError: The handle was synchronised before, or never existed.
    """
    return _core.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result.

    Blocks: until the operation is done or failed. On CUDA tensors, done means queued: the current
    stream waits for the result, and the host does not.

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
        wait(handle, *_tensors(entry))
    except (CollectiveError, ValueError):  # else an interrupt: the core still uses the memory
        pending.pop(handle, None)
        raise
    del pending[handle]
    if not isinstance(entry, tuple):
        return entry
    result = entry[1]
    return result(handle) if callable(result) else result


def _tensors(entry: Entry) -> list[torch.Tensor]:
    """What an operation reads and writes, of memory that is known when it is submitted."""
    if isinstance(entry, torch.Tensor):
        return [entry]
    return [
        tensor
        for part in entry
        if not callable(part)
        for tensor in (part if isinstance(part, list) else [part])
    ]


def tensor_of(handle: int) -> torch.Tensor:
    """`synchronize` for a handle that is under way and gives one tensor."""
    output: torch.Tensor = synchronize(handle)
    return output
