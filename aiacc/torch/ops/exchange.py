"""All-to-all and reduce-scatter of a tensor: every rank gets a part of what the others have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from aiacc.collectives import submission
from aiacc.collectives.handles import pending, synchronize
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import Average, Sum, check_scatter_op
from aiacc.collectives.splits import checked_splits, scattered_rows
from aiacc.process_sets import ProcessSet, global_process_set, rank_and_size
from aiacc.torch.adapter import check_rows, take_alltoall, tensor_of, view_of, wait
from aiacc.torch.compression.compressors import Compression, Compressor
from aiacc.torch.ops.autograd import apply, grad_name
from aiacc.torch.ops.gather import allgather_async

Splits: TypeAlias = Sequence[int] | torch.Tensor | None


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start sending a part of ``tensor`` to every rank, and receiving one from each.

    `synchronize` returns the pair that `alltoall` returns for given splits, also without them.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: never. Do not write ``tensor`` until `synchronize` returns the result.

    Raises:
        ValueError: Bad argument, among them splits that do not fit.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    what = label_of("alltoall", name)
    source = view_of(tensor, what)
    check_rows(tensor, what)
    numbers = _numbers_of(splits, what)
    size = rank_and_size(process_set).size
    parts = checked_splits(numbers, tensor.shape[0], size, f"[torch] {what}")
    shape = (sum(parts), *tensor.shape[1:])
    prepared = submission.alltoall(name, shape, source.code, source.device, parts, process_set)
    handle = prepared.start(source.address, 0, source.stream)
    pending[handle] = (wait, (tensor,), None, lambda handle: _take(handle, tensor))
    return handle


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send a part of ``tensor`` to every rank, and receive one from each.

    Differentiable: each part of the gradient goes back to where its rows came from.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: until the result is there.

    Args:
        tensor: Contiguous tensor of at least one dimension on the CPU or a CUDA device, of a dtype
            in `dtypes.DTYPE_CODES`.
        splits: Number of rows for every rank, a list or an int32 tensor; rows beyond their sum are
            not sent. None divides the rows evenly.
        name: Pairs this call with the calls of the other ranks.
        process_set: Ranks that take part.

    Returns:
        The parts for this rank, in rank order, as one tensor. If ``splits`` are given, a pair: that
        tensor, and how many rows came from each rank, an int32 tensor on the CPU.

    Raises:
        ValueError: Bad argument, among them splits that do not fit.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    return apply(_Alltoall, tensor, splits, name, process_set)


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


def _take(handle: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    output, received = take_alltoall(handle, like)
    return output, torch.tensor(received, dtype=torch.int32, device="cpu")


def _numbers_of(splits: Splits, what: str) -> Sequence[int] | None:
    if not isinstance(splits, torch.Tensor):
        return splits
    if splits.dtype != torch.int32 or splits.dim() != 1:
        raise ValueError(
            f"[torch] {what}: splits of dtype {splits.dtype} and shape {tuple(splits.shape)} "
            "(expected torch.int32 in one dimension); use splits.to(torch.int32), or a list"
        )
    numbers: list[int] = splits.tolist()
    return numbers


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Splits, name: str | None, process_set: ProcessSet
    ) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        if ctx is not None:
            ctx.arguments = (grad_name(name), received, tensor.shape[0], process_set)
            ctx.mark_non_differentiable(received)
        return output if splits is None else (output, received)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, received, rows, process_set = ctx.arguments
        gradient, _ = synchronize(
            alltoall_async(grads[0].contiguous(), received, name, process_set)
        )
        unsent = rows - gradient.shape[0]
        if unsent > 0:
            gradient = torch.cat([gradient, gradient.new_zeros((unsent, *gradient.shape[1:]))])
        return gradient, None, None, None


class _Reducescatter(torch.autograd.Function):
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
        gradient = tensor_of(allgather_async(grads[0].contiguous(), name, process_set))
        return gradient.mul_(factor), None, None, None, None, None
