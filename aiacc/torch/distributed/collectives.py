"""What the collectives of `aiacc.torch.distributed.process_group` submit, and do with the results.

Functions return when their operation is submitted; the `Step` says how to finish it. Tensors that
the core cannot take as they are, such as strided ones, pass through a copy. Operations are paired
by counting those of their kind in the group: another one has counts of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import ReduceOp

from aiacc.collectives import submission
from aiacc.collectives.reduce_ops import Average, Max, Min, Product, Sum
from aiacc.torch.adapter import (
    DTYPE_CODES,
    MOVED,
    REDUCED,
    SUMMED,
    address_of,
    plain,
    take_alltoall,
    take_output,
    view_of,
)
from aiacc.torch.distributed.groups import Group
from aiacc.torch.distributed.work import Step

_REDUCTIONS = {
    ReduceOp.SUM: Sum,
    ReduceOp.AVG: Average,
    ReduceOp.PRODUCT: Product,
    ReduceOp.MIN: Min,
    ReduceOp.MAX: Max,
    ReduceOp.PREMUL_SUM: Sum,
}
_SUMS = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PREMUL_SUM)
#: What the core does not reduce: every rank gathers all, and combines them itself.
_BITWISE: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}

Tensors = list[torch.Tensor]


def reduce_into(group: Group, tensor: torch.Tensor, target: torch.Tensor, op: Any) -> Step:
    """Reduce ``tensor`` into ``target``, which may be the same."""
    kind = kind_of(op)
    if kind in _BITWISE:
        if tensor.dtype not in DTYPE_CODES or tensor.is_floating_point():
            raise ValueError(
                f"[torch] all_reduce with {kind} of dtype {tensor.dtype} (expected integers or "
                "bool); use tensor.view(torch.int32), or what has the size of its elements"
            )
        return _gather_and_combine(group, tensor, target, _BITWISE[kind])
    sent, given = plain(tensor, "all_reduce"), target.detach()
    received = given if _is_plain(given) else torch.empty_like(sent)
    view = view_of(sent, "all_reduce", SUMMED if kind in _SUMS else REDUCED)
    prepared = submission.allreduce(
        None,
        *view.spec,
        _reduction_of(kind),
        _factor_of(op, kind),
        process_set=group.process_set,
        verb=f"allreduce@{group.series}",
    )
    handle = prepared.start(view.address, address_of(received, "all_reduce"), view.stream)
    return handle, _copy_back(received, given), (sent, received)


def _gather_and_combine(
    group: Group,
    tensor: torch.Tensor,
    target: torch.Tensor,
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Step:
    sent = plain(tensor, "all_reduce")

    def finish(handle: int) -> None:
        everyones = take_output(handle, sent).reshape(group.size, *sent.shape)
        target.detach().copy_(functools.reduce(combine, everyones))

    return submit_gather(group, sent), finish, (sent,)


def broadcast_from(group: Group, tensor: torch.Tensor, root: int) -> Step:
    """Overwrite ``tensor`` with that of rank ``root``."""
    given, buffer = tensor.detach(), plain(tensor, "broadcast")
    view = view_of(buffer, "broadcast", MOVED)
    prepared = submission.broadcast(
        None,
        *view.spec,
        group.number_of(root),
        process_set=group.process_set,
        verb=f"broadcast@{group.series}",
    )
    handle = prepared.start(view.address, view.address, view.stream)
    return handle, _copy_back(buffer, given), (buffer,)


def gather_into(group: Group, tensor: torch.Tensor, outputs: Tensors | None) -> Step:
    """Copy the tensors of all ranks into ``outputs``, one after another; None: nowhere."""
    sent = plain(tensor, "all_gather")

    def finish(handle: int) -> None:
        received = take_output(handle, sent)
        if outputs is not None:
            _distribute(received, outputs)

    return submit_gather(group, sent), finish, (sent,)


def submit_gather(group: Group, sent: torch.Tensor) -> int:
    """Start to gather the elements of all ranks, which may have different numbers of them."""
    view = view_of(sent.reshape(-1), "all_gather", MOVED)
    prepared = submission.allgather(
        None, *view.spec, process_set=group.process_set, verb=f"allgather@{group.series}"
    )
    return prepared.start(view.address, 0, view.stream)


def reduce_scatter_into(group: Group, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> Step:
    """Reduce ``tensor``, of which ``output`` gets this rank's part.

    Raises:
        ValueError: The numbers of elements or the dtypes do not fit.
    """
    kind = kind_of(op)
    size = group.size
    if tensor.numel() != output.numel() * size:
        raise ValueError(
            f"[torch] reduce_scatter of {tensor.numel()} elements into {output.numel()} on "
            f"{size} ranks (expected {output.numel() * size} in the input)"
        )
    if tensor.dtype != output.dtype:
        raise ValueError(
            f"[torch] reduce_scatter of {tensor.dtype} into {output.dtype} (expected one dtype); "
            "give an output of the input's dtype"
        )
    given = output.detach()
    sent = plain(tensor, "reduce_scatter")
    if kind not in _SUMS:
        reduced = torch.empty_like(sent)
        handle, finish, used = reduce_into(group, sent, reduced, op)

        def take_part(handle: int) -> None:
            if finish is not None:
                finish(handle)
            part = reduced.reshape(size, -1)[group.rank]
            given.copy_(part.reshape(given.shape))

        return handle, take_part, used
    received = given if _is_plain(given) else torch.empty_like(given).contiguous()
    view = view_of(sent.reshape(size, received.numel()), "reduce_scatter", SUMMED)
    prepared = submission.reducescatter(
        None,
        *view.spec,
        _reduction_of(kind),
        _factor_of(op, kind),
        process_set=group.process_set,
        verb=f"reducescatter@{group.series}",
    )
    handle = prepared.start(view.address, address_of(received, "reduce_scatter"), view.stream)
    return handle, _copy_back(received, given), (sent, received)


def exchange(
    group: Group,
    tensor: torch.Tensor,
    parts: list[int],
    outputs: Tensors,
    expected: list[int],
) -> Step:
    """Send ``parts`` rows of ``tensor`` to the ranks; ``outputs`` get ``expected`` of each."""
    sent = plain(tensor, "all_to_all")
    view = view_of(sent, "all_to_all", MOVED)
    prepared = submission.alltoall(
        None,
        *view.spec,
        tuple(parts),
        process_set=group.process_set,
        verb=f"alltoall@{group.series}",
    )
    handle = prepared.start(view.address, 0, view.stream)

    def finish(handle: int) -> None:
        output, received = take_alltoall(handle, sent)
        if list(received) != list(expected):
            raise ValueError(
                f"[torch] all_to_all: rank {group.rank} received parts of {list(received)} "
                f"(expected {list(expected)}, as the output says); give every rank splits that "
                "match those of the others"
            )
        _distribute(output, outputs)

    return handle, finish, (sent,)


def joined(tensors: Tensors, what: str) -> torch.Tensor:
    """The elements of tensors of one dtype, one after another."""
    flat = [plain(tensor, what).reshape(-1) for tensor in tensors]
    if flat[0].dtype not in MOVED:
        return torch.cat(flat)
    # Which torch can do of any dtype only with bytes.
    return torch.cat([one.view(torch.uint8) for one in flat]).view(flat[0].dtype)


def even_parts(rows: int, what: str, size: int) -> list[int]:
    """Splits of an all-to-all that names none.

    Raises:
        ValueError: The rows cannot be divided evenly.
    """
    if rows % size != 0:
        raise ValueError(
            f"[torch] all_to_all: {what} of {rows} rows on {size} ranks (expected a "
            f"multiple of {size}); give {what}_split_sizes"
        )
    return [rows // size] * size


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory of ``tensor`` holds its values, one after another."""
    return tensor.is_contiguous() and not (tensor.is_neg() or tensor.is_conj())


def kind_of(op: Any) -> Any:
    """The kind of a reduction, without its factor."""
    if op is None:
        return ReduceOp.SUM
    return op.op if isinstance(op, ReduceOp) else op  # type: ignore[attr-defined]


def _reduction_of(kind: Any) -> int:
    if kind not in _REDUCTIONS:
        raise ValueError(f"[torch] reduction {kind} (expected one of torch.distributed.ReduceOp)")
    return _REDUCTIONS[kind]


def _factor_of(op: Any, kind: Any) -> float:
    return float(op.factor) if kind == ReduceOp.PREMUL_SUM else 1.0


def _copy_back(received: torch.Tensor, given: torch.Tensor) -> Callable[[int], None] | None:
    """What brings the result into a tensor that the core could not write, else None."""
    if received.data_ptr() == given.data_ptr():
        return None

    def copy(handle: int) -> None:
        del handle
        target, values = given, received
        for dimension, (extent, step) in enumerate(zip(given.shape, given.stride(), strict=True)):
            if extent > 1 and step == 0:  # of `expand`: its elements are one
                target, first = (one.narrow(dimension, 0, 1) for one in (target, values))
                if not torch.equal(*(_bytes_of(one) for one in (values, first.expand_as(values)))):
                    raise ValueError(
                        "[torch] elements of an output that share memory, as `expand` makes them, "
                        "got different results (expected memory for each); give .contiguous() of it"
                    )
                values = first
        target.copy_(values)

    return copy


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def _distribute(received: torch.Tensor, outputs: Tensors) -> None:
    """Fill the outputs, one after another."""
    total = sum(output.numel() for output in outputs)
    if received.numel() != total:
        raise ValueError(
            f"[torch] {received.numel()} elements came from the ranks (expected {total}, the size "
            "of the outputs); give outputs of the size of all inputs"
        )
    flat = received.reshape(-1)
    parts = torch.split(flat, [output.numel() for output in outputs])
    for part, output in zip(parts, outputs, strict=True):
        address_of(output, "an output")  # copies do not ask
        output.detach().copy_(part.reshape(output.shape))
