"""Collectives on NumPy and CuPy arrays and whatever else has their interfaces, or DLPack.

Every collective has to be called by all ranks with equal names, shapes (except the first dimension
of an all-gather), dtypes and parameters, in any order. Calls without a name are paired by counting
them, so those need the same order everywhere.
"""

from __future__ import annotations

from typing import Any

from aiacc.array.adapter import (
    Array,
    address_of,
    check_rows,
    take_output,
    view_of,
    wait,
    writable_view_of,
)
from aiacc.collectives import submission
from aiacc.collectives.handles import pending, synchronize
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import resolve_op
from aiacc.process_sets import ProcessSet, global_process_set


def allreduce_async(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing ``tensor`` over all ranks into a new array, which `synchronize` returns.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: never. Do not write ``tensor`` until `synchronize` returns.

    Args:
        tensor: C-contiguous array of any shape, of a dtype in `dtypes.DTYPE_CODES`, in host memory
            or on a CUDA device. Results are where ``tensor`` is.
        average: Deprecated; True means op=Average, False op=Sum.
        name: Pairs this call with the calls of the other ranks.
        op: Average (default), Sum, Min, Max, Product, or Adasum of floating-point tensors.
            Sums of integers, which Average divides, wrap around in their dtype.
        prescale_factor: Multiplies the input of every rank; integers are truncated.
        postscale_factor: Multiplies the result.
        process_set: Ranks that take part.

    Returns:
        Handle for `poll` and `synchronize`.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    op = resolve_op(average, op)
    source = view_of(tensor, label_of("allreduce", name))
    result = source.empty(source.shape)
    prepared = submission.allreduce(
        name, *source.spec, op, prescale_factor, postscale_factor, process_set
    )
    handle = prepared.start(source.address, address_of(result), source.stream)
    pending[handle] = (wait, [source], result, None)
    return handle


def allreduce_async_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing ``tensor`` over all ranks in place.

    Arguments and errors are those of `allreduce_async`. Leave ``tensor``, which has to be writable,
    alone until `synchronize` returns it.
    """
    op = resolve_op(average, op)
    source = writable_view_of(tensor, label_of("allreduce", name))
    prepared = submission.allreduce(
        name, *source.spec, op, prescale_factor, postscale_factor, process_set
    )
    handle = prepared.start(source.address, source.address, source.stream)
    pending[handle] = (wait, [source], tensor, None)
    return handle


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce ``tensor`` over all ranks into a new array.

    Arguments are those of `allreduce_async`.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: until the result is there.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    op = resolve_op(average, op)
    result: Array = synchronize(
        allreduce_async(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    )
    return result


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce ``tensor`` over all ranks in place and return it; otherwise like `allreduce`."""
    op = resolve_op(average, op)
    return synchronize(
        allreduce_async_(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    )


def allgather_async(
    tensor: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start concatenating the arrays of all ranks along the first dimension.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: never. Do not write ``tensor`` until `synchronize` returns the result.

    Raises:
        ValueError: Bad argument, among them an array without dimensions.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    source = view_of(tensor, label_of("allgather", name), moved=True)
    check_rows(source, label_of("allgather", name))
    prepared = submission.allgather(name, *source.spec, process_set)
    handle = prepared.start(source.address, 0, source.stream)
    pending[handle] = (wait, [source], None, lambda handle: take_output(handle, source))
    return handle


def allgather(
    tensor: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Concatenate the arrays of all ranks along the first dimension, in rank order.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: until the result is there.

    Returns:
        New array whose first dimension is the sum of those of all ranks.

    Raises:
        ValueError: Bad argument, among them an array without dimensions.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    result: Array = synchronize(allgather_async(tensor, name, process_set))
    return result


def broadcast_async(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start copying ``tensor`` of ``root_rank`` into a new array, which `synchronize` returns.

    Collective: every rank, with the same name, shape, dtype and root, a global rank.
    Blocks: never. Do not write ``tensor`` until `synchronize` returns.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    source = view_of(tensor, label_of("broadcast", name), moved=True)
    result = source.empty(source.shape)
    prepared = submission.broadcast(name, *source.spec, root_rank, process_set)
    handle = prepared.start(source.address, address_of(result), source.stream)
    pending[handle] = (wait, [source], result, None)
    return handle


def broadcast_async_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start overwriting ``tensor`` with that of ``root_rank``; otherwise like `broadcast_async`."""
    source = writable_view_of(tensor, label_of("broadcast", name), moved=True)
    prepared = submission.broadcast(name, *source.spec, root_rank, process_set)
    handle = prepared.start(source.address, source.address, source.stream)
    pending[handle] = (wait, [source], tensor, None)
    return handle


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Copy ``tensor`` of ``root_rank``, a global rank, into a new array on every rank.

    Collective: every rank, with the same name, shape, dtype and root.
    Blocks: until the result is there.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    result: Array = synchronize(broadcast_async(tensor, root_rank, name, process_set))
    return result


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Overwrite ``tensor`` with that of ``root_rank`` and return it; otherwise like `broadcast`."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))
