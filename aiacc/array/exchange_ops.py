"""All-to-all and reduce-scatter of an array: every rank gets a part of what the others have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from aiacc.array.adapter import Array, View, address_of, check_rows, take_alltoall, view_of, wait
from aiacc.collectives import submission
from aiacc.collectives.handles import pending, synchronize
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import Average, check_scatter_op
from aiacc.collectives.splits import checked_splits, scattered_rows
from aiacc.process_sets import ProcessSet, global_process_set, rank_and_size

Splits: TypeAlias = Sequence[int] | Array | None


def alltoall_async(
    tensor: Any,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending a part of ``tensor`` to every rank, and receiving one from each.

    `synchronize` returns what `alltoall` returns.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: never. Do not write ``tensor`` until `synchronize` returns the result.

    Raises:
        ValueError: Bad argument, among them splits that do not fit.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    what = label_of("alltoall", name)
    source = view_of(tensor, what, moved=True)
    check_rows(source, what)
    size = rank_and_size(process_set).size
    parts = checked_splits(_numbers_of(splits, what), source.shape[0], size, f"[array] {what}")
    shape = (sum(parts), *source.spec[0][1:])
    prepared = submission.alltoall(name, shape, source.code, source.device, parts, process_set)
    handle = prepared.start(source.address, 0, source.stream)

    def take(handle: int) -> Any:
        output, received = take_alltoall(handle, source)
        return output if splits is None else (output, np.array(received, np.int32))

    pending[handle] = (wait, [source], None, take)
    return handle


def alltoall(
    tensor: Any,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a part of ``tensor`` to every rank, and receive one from each.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: until the result is there.

    Args:
        tensor: C-contiguous array of at least one dimension, of any dtype but objects.
        splits: Number of rows for every rank, a list or an int32 array; rows beyond their sum are
            not sent. None divides the rows evenly.
        name: Pairs this call with the calls of the other ranks.
        process_set: Ranks that take part.

    Returns:
        The parts for this rank, in rank order, as one array. If ``splits`` are given, a pair: that
        array, and how many rows came from each rank, an int32 array.

    Raises:
        ValueError: Bad argument, among them splits that do not fit.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    return synchronize(alltoall_async(tensor, splits, name, process_set))


def reducescatter_async(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducing ``tensor`` over all ranks, each of which gets a part of the rows.

    Arguments and errors are those of `reducescatter`.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: never. Do not write ``tensor`` until `synchronize` returns the result.
    """
    what = label_of("reducescatter", name)
    op = check_scatter_op(op)
    source = view_of(tensor, what)
    check_rows(source, what)
    output = scattered_output(source, process_set)
    prepared = submission.reducescatter(
        name, *source.spec, op, prescale_factor, postscale_factor, process_set
    )
    handle = prepared.start(source.address, address_of(output), source.stream)
    pending[handle] = (wait, [source], output, None)
    return handle


def reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduce ``tensor`` over all ranks, each of which gets a part of the rows.

    Of ``d`` rows, the first ``d % size`` ranks get one more than the others.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: until the result is there.

    Args:
        tensor: C-contiguous array of at least one dimension, of a dtype in `dtypes.DTYPE_CODES`.
        name: Pairs this call with the calls of the other ranks.
        op: Average (default) or Sum.
            Sums of integers, which Average divides, wrap around in their dtype.
        process_set: Ranks that take part.
        prescale_factor: Multiplies the input of every rank; integers are truncated.
        postscale_factor: Multiplies the result.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Another op; or the operation failed, `MismatchError` if the ranks disagree
            about it.
    """
    part: Array = synchronize(
        reducescatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor)
    )
    return part


def scattered_output(source: View, process_set: ProcessSet) -> Any:
    """Room for this rank's part of a reducescatter of ``source``."""
    rank, size = rank_and_size(process_set)
    return source.empty((scattered_rows(source.shape[0], rank, size), *source.shape[1:]))


def _numbers_of(splits: Splits, what: str) -> Sequence[int] | None:
    if not isinstance(splits, np.ndarray):
        return splits
    if splits.dtype != np.int32 or splits.ndim != 1:
        raise ValueError(
            f"[array] {what}: splits of dtype {splits.dtype} and shape {splits.shape} (expected "
            "int32 in one dimension); use splits.astype('int32'), or a list"
        )
    numbers: list[int] = splits.tolist()
    return numbers
