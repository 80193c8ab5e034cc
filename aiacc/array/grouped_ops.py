"""Operations on several arrays that the core begins together, when all ranks have all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from aiacc import arguments
from aiacc.array.adapter import (
    Array,
    View,
    address_of,
    check_rows,
    take_outputs,
    view_of,
    wait,
    writable_view_of,
)
from aiacc.array.exchange_ops import scattered_output
from aiacc.collectives import submission
from aiacc.collectives.handles import pending, synchronize
from aiacc.collectives.labels import label_of
from aiacc.collectives.memory import check_apart
from aiacc.collectives.reduce_ops import Average, check_scatter_op, resolve_op
from aiacc.process_sets import ProcessSet, global_process_set


def grouped_allreduce_async(
    tensors: Iterable[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing several arrays into new ones, as one operation; `synchronize` returns a list.

    Collective: every rank, with the same name, op and factors, and as many arrays of the same
    shapes and dtypes in the same order. The arrays of a group may be of several dtypes.
    Blocks: never. Do not write the arrays until `synchronize` returns.

    Arguments are those of `ops.allreduce_async`, with a list of arrays.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    op = resolve_op(average, op)
    group = _group_of(tensors, "grouped_allreduce", name)
    outputs = [source.empty(source.shape) for source in group]
    addresses = tuple(map(address_of, outputs))
    return _reduce(
        group, addresses, outputs, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_async_(
    tensors: Iterable[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start reducing several arrays in place, as one operation.

    Arguments and errors are those of `grouped_allreduce_async`. Leave the arrays, which have to be
    writable and to share no memory, alone until `synchronize` returns the list of them.
    """
    arguments.check({"tensors": tensors})
    op = resolve_op(average, op)
    given = list(tensors)
    group = _group_of(given, "grouped_allreduce", name, writable=True)
    addresses = tuple(source.address for source in group)
    sizes = (math.prod(source.shape) * source.dtype.itemsize for source in group)
    check_apart(
        zip(addresses, sizes, strict=True), f"[array] {label_of('grouped_allreduce', name)}"
    )
    return _reduce(
        group, addresses, given, name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce(
    tensors: Iterable[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduce several arrays into new ones, as one operation.

    Arguments are those of `grouped_allreduce_async`.

    Collective: every rank, with the same name, op and factors, and arrays that match.
    Blocks: until the results are there.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    op = resolve_op(average, op)
    results: list[Array] = synchronize(
        grouped_allreduce_async(
            tensors, None, name, op, prescale_factor, postscale_factor, process_set
        )
    )
    return results


def grouped_allreduce_(
    tensors: Iterable[Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce several arrays in place and return the list of them; else like `grouped_allreduce`."""
    op = resolve_op(average, op)
    results: list[Any] = synchronize(
        grouped_allreduce_async_(
            tensors, None, name, op, prescale_factor, postscale_factor, process_set
        )
    )
    return results


def grouped_allgather_async(
    tensors: Iterable[Any],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start concatenating several arrays of all ranks, as one operation.

    Collective: every rank, with the same name, and as many arrays of the same dtypes and shapes
    except the first dimension, in the same order.
    Blocks: never. Do not write the arrays until `synchronize` returns the list of results.

    Raises:
        ValueError: Bad argument, among them an array without dimensions.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    group = _group_of(tensors, "grouped_allgather", name, rows=True, moved=True)
    prepared = submission.allgather(name, *_specs(group), process_set)
    handle = _start(prepared, group, (0,) * len(group))
    pending[handle] = (wait, group, None, lambda handle: take_outputs(handle, group))
    return handle


def grouped_allgather(
    tensors: Iterable[Any],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Concatenate several arrays of all ranks along their first dimensions, as one operation.

    Collective: every rank, with the same name, and as many arrays of the same dtypes and shapes
    except the first dimension, in the same order.
    Blocks: until the results are there.

    Raises:
        ValueError: Bad argument, among them an array without dimensions.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    results: list[Array] = synchronize(grouped_allgather_async(tensors, name, process_set))
    return results


def grouped_reducescatter_async(
    tensors: Iterable[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducing several arrays, of each of which every rank gets a part, as one operation.

    Collective: every rank, with the same name, op and factors, and arrays that match.
    Blocks: never. Do not write the arrays until `synchronize` returns the list of results.

    Raises:
        ValueError: Bad argument, among them an array without dimensions.
        CollectiveError: Another op than Average and Sum; not initialised, or an earlier failure was
            fatal.
    """
    op = check_scatter_op(op)
    group = _group_of(tensors, "grouped_reducescatter", name, rows=True)
    outputs = [scattered_output(source, process_set) for source in group]
    prepared = submission.reducescatter(
        name, *_specs(group), op, prescale_factor, postscale_factor, process_set
    )
    handle = _start(prepared, group, tuple(map(address_of, outputs)))
    pending[handle] = (wait, group, outputs, None)
    return handle


def grouped_reducescatter(
    tensors: Iterable[Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Reduce several arrays over all ranks, each of which gets a part of the rows of every array.

    Collective: every rank, with the same name, op and factors, and arrays that match.
    Blocks: until the results are there.

    Raises:
        ValueError: Bad argument, among them an array without dimensions.
        CollectiveError: Another op than Average and Sum; or the operation failed, `MismatchError`
            if the ranks disagree about it.
    """
    results: list[Array] = synchronize(
        grouped_reducescatter_async(
            tensors, name, op, process_set, prescale_factor, postscale_factor
        )
    )
    return results


def _group_of(
    tensors: Iterable[Any],
    kind: str,
    name: str | None,
    *,
    rows: bool = False,
    writable: bool = False,
    moved: bool = False,
) -> list[View]:
    """Views of the arrays, once it is certain that the core takes them."""
    what = label_of(kind, name)
    arguments.check({"tensors": tensors})
    see = writable_view_of if writable else view_of
    views = [see(array, f"array {index} of {what}", moved) for index, array in enumerate(tensors)]
    if not views:
        raise ValueError(f"[array] {what}: an empty list (expected at least one array)")
    device = views[0].device
    for index, view in enumerate(views):
        if rows:
            check_rows(view, f"array {index} of {what}")
        if view.device != device:
            raise ValueError(
                f"[array] {what}: array {index} on device {view.device} and array 0 on {device} "
                "(expected one device, or -1, host memory); make a group for each"
            )
    return views


def _start(prepared: submission.Submission, group: list[View], outputs: tuple[int, ...]) -> int:
    """Start an operation on the group; ``outputs`` are addresses."""
    return prepared.start(tuple(source.address for source in group), outputs, group[0].stream)


def _reduce(
    group: list[View],
    outputs: tuple[int, ...],
    results: list[Any],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> int:
    prepared = submission.allreduce(
        name, *_specs(group), op, prescale_factor, postscale_factor, process_set
    )
    handle = _start(prepared, group, outputs)
    pending[handle] = (wait, group, results, None)
    return handle


def _specs(group: list[View]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], int]:
    """Shapes, dtypes and the device of a group."""
    shapes = tuple(source.spec[0] for source in group)
    return shapes, tuple(source.code for source in group), group[0].device
