"""All-gather and broadcast of a tensor."""

from __future__ import annotations

from typing import Any

import torch

from aiacc import _core
from aiacc.collectives import submission
from aiacc.collectives.handles import pending
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import Average
from aiacc.process_sets import ProcessSet, global_process_set, rank_and_size
from aiacc.torch.adapter import check_rows, take_output, tensor_of, view_of, wait
from aiacc.torch.ops.allreduce import allreduce_async
from aiacc.torch.ops.autograd import apply, grad_name


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start concatenating the tensors of all ranks along the first dimension.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: never. Do not write ``tensor`` until `synchronize` returns the result.

    Raises:
        ValueError: Bad argument, among them a tensor without dimensions.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    source = view_of(tensor, label_of("allgather", name))
    check_rows(tensor, label_of("allgather", name))
    handle = submission.allgather(name, *source.spec, process_set).start(
        source.address, 0, source.stream
    )
    pending[handle] = (wait, (tensor,), None, lambda handle: take_output(handle, tensor))
    return handle


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Concatenate the tensors of all ranks along the first dimension, in rank order.

    Differentiable: the gradient is averaged over the ranks, each takes the rows that it gave.

    Collective: every rank, with the same name, dtype and shape except the first dimension.
    Blocks: until the result is there.

    Returns:
        New tensor whose first dimension is the sum of those of all ranks.

    Raises:
        ValueError: Bad argument, among them a tensor without dimensions.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    gathered: torch.Tensor = apply(_Allgather, tensor, name, process_set)
    return gathered


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start overwriting ``tensor`` with that of ``root_rank``, a global rank.

    Collective: every rank, with the same name, shape, dtype and root.
    Blocks: never. Leave ``tensor`` alone until `synchronize` returns.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    source = view_of(tensor, label_of("broadcast", name))
    prepared = submission.broadcast(name, *source.spec, root_rank, process_set)
    handle = prepared.start(source.address, source.address, source.stream)
    pending[handle] = (wait, (tensor,), tensor, None)
    return handle


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start copying ``tensor`` of ``root_rank`` into a new tensor, which `synchronize` returns.

    Arguments, errors and duties are those of `broadcast_async_`; ``tensor`` is only read.
    """
    source = view_of(tensor, label_of("broadcast", name))
    output = torch.empty_like(tensor, requires_grad=False)
    prepared = submission.broadcast(name, *source.spec, root_rank, process_set)
    handle = prepared.start(source.address, output.data_ptr(), source.stream)
    pending[handle] = (wait, (tensor, output), output, None)
    return handle


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copy ``tensor`` of ``root_rank``, a global rank, into a new tensor on every rank.

    Differentiable: the root's gradient is the average over the ranks, the others' is zero.

    Collective: every rank, with the same name, shape, dtype and root.
    Blocks: until the result is there.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: The operation failed; `MismatchError` if the ranks disagree about it.
    """
    copy: torch.Tensor = apply(_Broadcast, tensor, root_rank, name, process_set)
    return copy


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Overwrite ``tensor`` with that of ``root_rank`` and return it.

    Arguments and errors are those of `broadcast`; autograd does not see the change.
    """
    return tensor_of(broadcast_async_(tensor, root_rank, name, process_set))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        if ctx is not None:
            ctx.arguments = (grad_name(name), tensor.shape[0], process_set)
        return tensor_of(allgather_async(tensor, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, rows, process_set = ctx.arguments
        gradient = tensor_of(
            allreduce_async(grads[0].contiguous(), None, name, Average, 1.0, 1.0, process_set)
        )
        rows_of = tensor_of(
            allgather_async(
                torch.tensor([rows], device="cpu"), name and name + ".rows", process_set
            )
        )
        begin = int(rows_of[: rank_and_size(process_set).rank].sum())
        return gradient.narrow(0, begin, rows), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        if ctx is not None:
            ctx.arguments = (root_rank, grad_name(name), process_set)
        return tensor_of(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        root_rank, name, process_set = ctx.arguments
        gradient = tensor_of(
            allreduce_async(grads[0].contiguous(), None, name, Average, 1.0, 1.0, process_set)
        )
        if _core.rank() != root_rank:
            gradient.zero_()
        return gradient, None, None, None
