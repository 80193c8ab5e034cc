"""All-to-all of a tensor: every rank gets a part of what each of the others has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from aiacc.collectives import submission
from aiacc.collectives.handles import pending, synchronize
from aiacc.collectives.labels import label_of
from aiacc.collectives.splits import checked_splits
from aiacc.process_sets import ProcessSet, global_process_set, rank_and_size
from aiacc.torch.adapter import MOVED, check_rows, take_alltoall, view_of, wait
from aiacc.torch.ops.autograd import apply, grad_name
from aiacc.torch.ops.tensor_list import gradients_of

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
    source = view_of(tensor, what, MOVED)
    check_rows(tensor, what)
    numbers = _numbers_of(splits, what)
    size = rank_and_size(process_set).size
    parts = checked_splits(numbers, tensor.shape[0], size, f"[torch] {what}")
    shape = (sum(parts), *source.shape[1:])
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
        tensor: Contiguous tensor of at least one dimension and any dtype, on the CPU or a CUDA
            device.
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
    verb = "alltoall"

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
        (upstream,) = gradients_of(grads[:1])
        gradient, _ = alltoall(upstream, received, name, process_set)
        unsent = rows - gradient.shape[0]
        if unsent > 0:
            gradient = torch.cat([gradient, gradient.new_zeros((unsent, *gradient.shape[1:]))])
        return gradient, None, None, None
