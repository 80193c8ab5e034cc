"""Reduce-scatter of a group of tensors, which become ready together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from aiacc.collectives import submission
from aiacc.collectives.handles import pending
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import Average, check_scatter_op
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch.adapter import wait
from aiacc.torch.compression.compressors import (
    Compression,
    Compressor,
    scatter_compressor_of,
)
from aiacc.torch.ops.autograd import apply_to_group, grad_name
from aiacc.torch.ops.grouped_allgather import grouped_allgather
from aiacc.torch.ops.reducescatter import scatter_grad_factor, scattered_output
from aiacc.torch.ops.tensor_list import (
    Tensors,
    addresses_of,
    decompressed,
    gradients_of,
    group_of,
    group_view_of,
    tensors_of,
)


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
    group = group_of(tensors, "grouped_reducescatter", name, rows=True)
    outputs = [scattered_output(tensor, process_set) for tensor in group]
    view = group_view_of(group, label_of("grouped_reducescatter", name))
    prepared = submission.reducescatter(
        name, *view.spec, op, prescale_factor, postscale_factor, process_set
    )
    handle = prepared.start(view.addresses, addresses_of(outputs), view.stream)
    pending[handle] = (wait, [*group, *outputs], outputs, None)
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
    group = group_of(tensors, "grouped_reducescatter", name, rows=True)
    compression = scatter_compressor_of(compression)
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
    return decompressed(compression, parts, compressed)


class _GroupedReducescatter(torch.autograd.Function):
    verb = "grouped_reducescatter"

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
        return tuple(tensors_of(handle))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, factor, process_set = ctx.arguments
        gathered = grouped_allgather(gradients_of(grads), name, process_set)
        return None, None, None, None, None, *(gradient.mul_(factor) for gradient in gathered)
