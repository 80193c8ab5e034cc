"""Operations on several tensors that the core begins together, when all ranks have all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from aiacc import _core
from aiacc.process_sets import ProcessSet, global_process_set, place_in, set_id
from aiacc.reduce_ops import Average, check_scatter_op, resolve_op
from aiacc.torch.autograd import apply_to_group, grad_name
from aiacc.torch.compression import Compression, Compressor
from aiacc.torch.exchange_ops import scatter_grad_factor, scattered_output
from aiacc.torch.gather_ops import allgather_async
from aiacc.torch.handles import pending, synchronize, tensor_of
from aiacc.torch.sending import to_send
from aiacc.torch.tensors import address_and_code, check_rows, place_of_all, take_outputs
from aiacc.torch.wire_formats import AS_THEY_ARE, wire_of

Tensors = list[torch.Tensor]


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
        tensors: At least one; each like the argument of `allreduce_async_`.
        average: Deprecated; True means op=Average, False op=Sum.
        name: Pairs this call with the calls of the other ranks.
        op: Average (default), Sum, Min, Max, Product, or Adasum of floating-point tensors.
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
    group = _group_of(tensors, "grouped_allreduce", name)
    rest = (name, op, prescale_factor, postscale_factor, process_set)
    if compression is not Compression.none:
        return _reduce_compressed(group, compression, *rest)
    return _reduce(group, group, *rest)


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
    group = _group_of(tensors, "grouped_allreduce", name)
    rest = (name, op, prescale_factor, postscale_factor, process_set)
    wire = wire_of(compression, group, op)
    if wire is None and compression is not Compression.none:
        copies = [tensor.detach().clone() for tensor in group]
        return _reduce_compressed(copies, compression, *rest)
    return _reduce_anew(group, *rest, wire or AS_THEY_ARE)


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

    Differentiable: the gradients are reduced as a group with the same op and factors.

    Arguments are those of `grouped_allreduce_async_`, and ``compression``, the form in which the
    tensors travel.

    Collective: every rank, with the same name, op and factors, and tensors that match.
    Blocks: until the results are there.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    op = resolve_op(average, op)
    group = _group_of(tensors, "grouped_allreduce", name)
    rest = (name, op, prescale_factor, postscale_factor, process_set)
    wire = wire_of(compression, group, op)
    if wire is not None:
        return apply_to_group(_GroupedAllreduce, group, *rest, wire)
    compressed = [compression.compress(tensor) for tensor in group]
    sent = [tensor for tensor, _ in compressed]
    reduced = apply_to_group(_GroupedAllreduce, sent, *rest, AS_THEY_ARE)
    return _decompressed(compression, reduced, compressed)


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

    Arguments and errors are those of `grouped_allreduce`; autograd does not see the change.
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
    return _tensors_of(handle)


def grouped_allgather_async(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `allgather` of several tensors as one operation; `synchronize` returns a list.

    Collective: every rank, with the same name, and as many tensors of the same dtypes and shapes
    except the first dimension, in the same order.
    Blocks: never. Do not write the tensors until `synchronize` returns the results.

    Raises:
        ValueError: Bad argument, among them a tensor without dimensions.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    group = _group_of(tensors, "grouped_allgather", name, rows=True)
    handle = _submit(
        _core.ALLGATHER, "grouped_allgather", name, group, None, 1, 1.0, 1.0, process_set
    )
    pending[handle] = (group, lambda handle: take_outputs(handle, group))
    return handle


def grouped_allgather(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensors:
    """Concatenate the tensors of all ranks along the first dimension, as one operation.

    Differentiable: see `allgather`.

    Collective: every rank, with the same name, and as many tensors of the same dtypes and shapes
    except the first dimension, in the same order.
    Blocks: until the results are there.

    Raises:
        ValueError: Bad argument, among them a tensor without dimensions.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    group = _group_of(tensors, "grouped_allgather", name, rows=True)
    return apply_to_group(_GroupedAllgather, group, name, process_set)


def grouped_reducescatter_async(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start `reducescatter` of several tensors as one operation; `synchronize` returns a list.

    Collective: every rank, with the same name, op and factors, and tensors that match.
    Blocks: never. Do not write the tensors until `synchronize` returns the results.

    Raises:
        ValueError: Bad argument, among them a tensor without dimensions.
        CollectiveError: Another op than Average and Sum; not initialised, or an earlier failure was
            fatal.
    """
    op = check_scatter_op(op)
    group = _group_of(tensors, "grouped_reducescatter", name, rows=True)
    outputs = [scattered_output(tensor, process_set) for tensor in group]
    handle = _submit(
        _core.REDUCESCATTER,
        "grouped_reducescatter",
        name,
        group,
        outputs,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
    )
    pending[handle] = (group, outputs)
    return handle


def grouped_reducescatter(
    tensors: Iterable[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensors:
    """Reduce ``tensors`` over all ranks, each of which gets a part of the rows of every tensor.

    Differentiable: see `reducescatter`.

    Collective: every rank, with the same name, op and factors, and tensors that match.
    Blocks: until the results are there.

    Raises:
        ValueError: Bad argument, among them a tensor without dimensions.
        CollectiveError: Another op than Average and Sum; or the operation failed, `MismatchError`
            if the ranks disagree about it.
    """
    group = _group_of(tensors, "grouped_reducescatter", name, rows=True)
    compressed = [compression.compress(tensor) for tensor in group]
    parts = apply_to_group(
        _GroupedReducescatter,
        [tensor for tensor, _ in compressed],
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
    )
    return _decompressed(compression, parts, compressed)


def _group_of(tensors: Any, kind: str, name: str | None, rows: bool = False) -> Tensors:
    """The tensors as a list, once it is certain that the core takes them."""
    what = f"{kind} of {name!r}"
    if isinstance(tensors, torch.Tensor):
        raise TypeError(
            f"[torch] {what}: one tensor of shape {tuple(tensors.shape)} (expected a list of "
            "tensors); wrap it in a list"
        )
    group = list(tensors)
    if not group:
        raise ValueError(f"[torch] {what}: an empty list (expected at least one tensor)")
    for number, tensor in enumerate(group):
        address_and_code(tensor, f"tensor {number} of {what}")
        if rows:
            check_rows(tensor, f"tensor {number} of {what}")
    return group


def _submit(
    kind: int,
    verb: str,
    name: str | None,
    tensors: Tensors,
    outputs: Tensors | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    wire: int = AS_THEY_ARE,
) -> int:
    codes = [address_and_code(tensor, verb) for tensor in tensors]
    return _core.submit_group(
        kind,
        f"{verb}.{name}" if name else "",
        tuple(address for address, _ in codes),
        tuple(0 if outputs is None else out.data_ptr() for out in outputs or tensors),
        tuple(tuple(tensor.shape) for tensor in tensors),
        tuple(code for _, code in codes),
        op,
        prescale_factor,
        postscale_factor,
        set_id(process_set),
        *place_of_all(tensors, f"{verb} of {name!r}"),
        wire,
    )


def _reduce(
    group: Tensors,
    outputs: Tensors,
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    wire: int = AS_THEY_ARE,
) -> int:
    handle = _submit(
        _core.ALLREDUCE,
        "grouped_allreduce",
        name,
        group,
        outputs,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        wire,
    )
    pending[handle] = (group, outputs)
    return handle


def _reduce_anew(group: Tensors, *rest: Any) -> int:
    """`_reduce` into new tensors."""
    return _reduce(group, [torch.empty_like(one, requires_grad=False) for one in group], *rest)


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

    pending[handle] = (sent, results)
    return handle


def _tensors_of(handle: int) -> Tensors:
    outputs: Tensors = synchronize(handle)
    return outputs


def _decompressed(
    compression: type[Compressor],
    results: Tensors,
    compressed: list[tuple[torch.Tensor, object]],
) -> Tensors:
    return [
        compression.decompress(result, ctx)
        for result, (_, ctx) in zip(results, compressed, strict=True)
    ]


def _contiguous(grads: Iterable[torch.Tensor]) -> Tensors:
    return [grad.contiguous() for grad in grads]


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        wire: int,
        *tensors: torch.Tensor,
    ) -> Any:
        rest = (op, prescale_factor, postscale_factor, process_set, wire)
        if ctx is not None:
            ctx.arguments = (grad_name(name), *rest)
        return tuple(_tensors_of(_reduce_anew(list(tensors), name, *rest)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        reduced = _tensors_of(_reduce_anew(_contiguous(grads), *ctx.arguments))
        return *(None for _ in ctx.arguments), *reduced


class _GroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        if ctx is not None:
            ctx.arguments = (grad_name(name), [tensor.shape[0] for tensor in tensors], process_set)
        return tuple(_tensors_of(grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, rows, process_set = ctx.arguments
        reduced = _tensors_of(
            grouped_allreduce_async(_contiguous(grads), None, name, Average, 1.0, 1.0, process_set)
        )
        rows_of = tensor_of(
            allgather_async(
                torch.tensor([rows], device="cpu"), name and name + ".rows", process_set
            )
        )
        begins = rows_of[: place_in(process_set).rank].sum(0).tolist()
        own = [g.narrow(0, b, n) for g, b, n in zip(reduced, begins, rows, strict=True)]
        return None, None, *own


class _GroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> Any:
        rest = (op, process_set, prescale_factor, postscale_factor)
        handle = grouped_reducescatter_async(tensors, name, *rest)
        if ctx is not None:
            factor = scatter_grad_factor(op, prescale_factor, postscale_factor, process_set)
            ctx.arguments = (grad_name(name), factor, process_set)
        return tuple(_tensors_of(handle))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, factor, process_set = ctx.arguments
        gathered = _tensors_of(grouped_allgather_async(_contiguous(grads), name, process_set))
        return None, None, None, None, None, *(gradient.mul_(factor) for gradient in gathered)
