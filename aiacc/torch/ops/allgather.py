"""All-gather of a tensor."""

from __future__ import annotations

from typing import Any

import torch

from aiacc.collectives import submission
from aiacc.collectives.handles import pending
from aiacc.collectives.labels import label_of
from aiacc.process_sets import ProcessSet, global_process_set, rank_and_size
from aiacc.torch.adapter import MOVED, check_rows, take_output, tensor_of, view_of, wait
from aiacc.torch.ops.autograd import apply, grad_name
from aiacc.torch.ops.grouped_allreduce import averages_of_gradients


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
    source = view_of(tensor, label_of("allgather", name), MOVED)
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


class _Allgather(torch.autograd.Function):
    verb = "allgather"

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
        (gradient,) = averages_of_gradients(grads, name, process_set)
        rows_of = tensor_of(
            allgather_async(
                torch.tensor([rows], device="cpu"), name and name + ".rows", process_set
            )
        )
        begin = int(rows_of[: rank_and_size(process_set).rank].sum())
        return gradient.narrow(0, begin, rows), None, None
