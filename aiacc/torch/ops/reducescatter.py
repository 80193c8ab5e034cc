"""Reduce-scatter of a tensor: every rank gets a part of the sum."""

from __future__ import annotations

from typing import Any

import torch

from aiacc.collectives import submission
from aiacc.collectives.handles import pending
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import Average, Sum, check_scatter_op
from aiacc.collectives.splits import scattered_rows
from aiacc.process_sets import ProcessSet, global_process_set, rank_and_size
from aiacc.torch.adapter import check_rows, refusal, tensor_of, view_of, wait
from aiacc.torch.compression.compressors import (
    Compression,
    Compressor,
    scatter_compressor_of,
)
from aiacc.torch.ops.allgather import allgather
from aiacc.torch.ops.autograd import apply, grad_name
from aiacc.torch.ops.tensor_list import gradients_of


def reducescatter_async(
    tensor: torch.Tensor,
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
    check_rows(tensor, what)
    output = scattered_output(tensor, process_set)
    prepared = submission.reducescatter(
        name, *source.spec, op, prescale_factor, postscale_factor, process_set
    )
    handle = prepared.start(source.address, output.data_ptr(), source.stream)
    pending[handle] = (wait, (tensor, output), output, None)
    return handle


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks, each of which gets a part of the rows.

    Of ``d`` rows, the first ``d % size`` ranks get one more than the others.

    Differentiable: the gradients of the parts are gathered, and multiplied by the factors and, for
    op=Sum, by the number of ranks, as in Horovod.

    Collective: every rank, with the same name, shape, dtype, op and factors.
    Blocks: until the result is there.

    Args:
        tensor: Contiguous tensor of at least one dimension on the CPU or a CUDA device, of a dtype
            in `dtypes.DTYPE_CODES`.
        name: Pairs this call with the calls of the other ranks.
        compression: Form in which the tensor travels.
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
    if not isinstance(tensor, torch.Tensor):
        raise refusal(tensor, label_of("reducescatter", name))
    compression = scatter_compressor_of(compression)
    compressed, ctx = compression.compress(tensor)
    part: torch.Tensor = apply(
        _Reducescatter, compressed, name, op, process_set, prescale_factor, postscale_factor
    )
    return compression.decompress(part, ctx)


def scattered_output(tensor: torch.Tensor, process_set: ProcessSet) -> torch.Tensor:
    """Room for this rank's part of a reducescatter of ``tensor``."""
    rank, size = rank_and_size(process_set)
    rows = scattered_rows(tensor.shape[0], rank, size)
    return tensor.new_empty((rows, *tensor.shape[1:]), requires_grad=False)


def scatter_grad_factor(
    op: int, prescale_factor: float, postscale_factor: float, process_set: ProcessSet
) -> float:
    """What Horovod multiplies the gradient of a reducescatter by."""
    size = rank_and_size(process_set).size if op == Sum else 1
    return size * prescale_factor * postscale_factor


class _Reducescatter(torch.autograd.Function):
    verb = "reducescatter"

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        handle = reducescatter_async(
            tensor, name, op, process_set, prescale_factor, postscale_factor
        )
        if ctx is not None:
            factor = scatter_grad_factor(op, prescale_factor, postscale_factor, process_set)
            ctx.arguments = (grad_name(name), factor, process_set)
        return tensor_of(handle)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, factor, process_set = ctx.arguments
        (upstream,) = gradients_of(grads)
        gradient = allgather(upstream, name, process_set)
        return gradient.mul_(factor), None, None, None, None, None
