"""All-reduce of groups of tensors, which become ready together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from aiacc.collectives import submission
from aiacc.collectives.handles import pending
from aiacc.collectives.labels import label_of
from aiacc.collectives.memory import check_apart
from aiacc.collectives.reduce_ops import Average, check_gradient_op, resolve_op
from aiacc.collectives.submission import AS_THEY_ARE
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch.adapter import REDUCED, SUMMED, Carriers, count_write, wait
from aiacc.torch.compression.compressors import Compression, Compressor, compressor_of
from aiacc.torch.compression.encode import to_send
from aiacc.torch.compression.wire_format import wire_of
from aiacc.torch.ops.autograd import apply_to_group, grad_name
from aiacc.torch.ops.tensor_list import (
    Tensors,
    addresses_of,
    decompressed,
    gradients_of,
    group_of,
    group_view_of,
    tensors_of,
)


def grouped_allreduce_async_(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """Start reducing ``tensors`` over all ranks in place, as one operation.

    Collective: every rank, with the same name, op and factors, and as many tensors of the same
    shapes and dtypes in the same order. The tensors of a group may be of several dtypes.
    Blocks: never. Leave the tensors alone until `synchronize` returns the list of them.

    Args:
        tensors: At least one; each like the argument of `allreduce_async_`, with memory of its own.
        average: Deprecated; True means op=Average, False op=Sum.
        name: Pairs this call with the calls of the other ranks.
        op: Average (default), Sum, Min, Max, Product, or Adasum of floating-point tensors.
            Sums of integers, which Average divides, wrap around in their dtype.
        prescale_factor: Multiplies the inputs of every rank; integers are truncated.
        postscale_factor: Multiplies the results.
        process_set: Ranks that take part.
        compression: Form in which the tensors travel.

    Returns:
        One handle, for `poll` and `synchronize`.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    op = resolve_op(average, op)
    group = group_of(tensors, "grouped_allreduce", name)
    check_apart(
        ((one.data_ptr(), one.nbytes) for one in group),
        f"[torch] {label_of('grouped_allreduce', name)}",
    )
    rest = (name, op, prescale_factor, postscale_factor, process_set)
    if compression is not Compression.none:
        handle = _reduce_compressed(group, compression, *rest)
    else:
        handle = _reduce(group, group, *rest)
    for tensor in group:
        count_write(tensor)
    return handle


def grouped_allreduce_async(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> int:
    """Start reducing ``tensors`` into new ones, a list of which `synchronize` returns.

    Arguments, errors and duties are those of `grouped_allreduce_async_`; the tensors are only read.
    """
    op = resolve_op(average, op)
    group = group_of(tensors, "grouped_allreduce", name)
    rest = (name, op, prescale_factor, postscale_factor, process_set)
    compression = compressor_of(compression)
    wire = wire_of(compression, group, op)
    if wire is None:
        copies = [tensor.detach().clone() for tensor in group]
        return _reduce_compressed(copies, compression, *rest)
    return _reduce_anew(group, *rest, wire)


def grouped_allreduce(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensors:
    """Reduce ``tensors`` over all ranks into new ones, as one operation.

    Differentiable with op=Average or Sum: the gradients are reduced as a group with the same op and
    factors. The backward pass of another op raises NotImplementedError.

    Arguments are those of `grouped_allreduce_async_`, and ``compression``, the form in which the
    tensors travel.

    Collective: every rank, with the same name, op and factors, and tensors that match.
    Blocks: until the results are there.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    op = resolve_op(average, op)
    group = group_of(tensors, "grouped_allreduce", name)
    rest = (name, op, prescale_factor, postscale_factor, process_set)
    compression = compressor_of(compression)
    wire = wire_of(compression, group, op)
    if wire is not None:
        return apply_to_group(_GroupedAllreduce, group, *rest, wire, REDUCED)
    compressed = [compression.compress(tensor) for tensor in group]
    sent = [tensor for tensor, _ in compressed]
    reduced = apply_to_group(_GroupedAllreduce, sent, *rest, AS_THEY_ARE, REDUCED)
    return decompressed(compression, reduced, compressed)


def grouped_allreduce_(
    tensors: Iterable[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: type[Compressor] = Compression.none,
) -> Tensors:
    """Reduce ``tensors`` over all ranks in place and return the list of them.

    Arguments and errors are those of `grouped_allreduce`. Autograd counts the
    change as a write, but has no gradient of it.
    """
    op = resolve_op(average, op)
    handle = grouped_allreduce_async_(
        tensors,
        None,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        compression=compression,
    )
    return tensors_of(handle)


def _reduce(
    group: Tensors,
    outputs: Tensors,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    wire: int = AS_THEY_ARE,
    carriers: Carriers = REDUCED,
) -> int:
    view = group_view_of(group, label_of("grouped_allreduce", name), carriers)
    prepared = submission.allreduce(
        name, *view.spec, op, prescale_factor, postscale_factor, process_set, wire
    )
    handle = prepared.start(view.addresses, addresses_of(outputs), view.stream)
    pending[handle] = (wait, [*group, *outputs], outputs, None)
    return handle


def _reduce_anew(group: Tensors, *rest: Any) -> int:
    """`_reduce` into new tensors."""
    return _reduce(group, [torch.empty_like(one, requires_grad=False) for one in group], *rest)


def averages_of_gradients(
    gradients: Iterable[torch.Tensor], name: str | None, process_set: ProcessSet
) -> Tensors:
    """The averages of gradients, some of them complex, over all ranks. Collective. Blocks.

    Differentiable.
    """
    rest = name, Average, 1.0, 1.0, process_set, AS_THEY_ARE, SUMMED
    return apply_to_group(_GroupedAllreduce, gradients_of(gradients), *rest)


def _reduce_compressed(
    group: Tensors, compression: type[Compressor], name: str | None, op: int, *rest: Any
) -> int:
    """Submit ``group`` to be reduced in place, in the form that ``compression`` gives it."""
    sent, restore, wire = to_send(compression, group, op)
    arguments = name, op, *rest, wire
    handle = _reduce(sent, sent, *arguments)

    def results(_: int) -> Tensors:
        if restore is not None:
            restore()
        return group

    pending[handle] = (wait, sent, None, results)
    return handle


class _GroupedAllreduce(torch.autograd.Function):
    verb = "grouped_allreduce"

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        wire: int,
        carriers: Carriers,
        *tensors: torch.Tensor,
    ) -> Any:
        rest = (op, prescale_factor, postscale_factor, process_set, wire, carriers)
        if ctx is not None:
            ctx.arguments, ctx.name = (grad_name(name), *rest), name
        return tuple(tensors_of(_reduce_anew(list(tensors), name, *rest)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        what = label_of("grouped_allreduce", ctx.name)
        check_gradient_op(ctx.arguments[1], f"[torch] {what}")
        reduced = apply_to_group(_GroupedAllreduce, gradients_of(grads), *ctx.arguments)
        return *(None for _ in ctx.arguments), *reduced
