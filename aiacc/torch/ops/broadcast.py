"""Broadcast of a tensor."""

from __future__ import annotations

from typing import Any

import torch

from aiacc import _core
from aiacc.collectives import submission
from aiacc.collectives.handles import pending
from aiacc.collectives.labels import label_of
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch.adapter import MOVED, count_write, tensor_of, view_of, wait
from aiacc.torch.ops.autograd import apply, grad_name
from aiacc.torch.ops.grouped_allreduce import averages_of_gradients


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start overwriting ``tensor`` with that of ``root_rank``, a global rank.

    Collective: every rank, with the same name, shape, dtype and root.
    Blocks: never. Leave ``tensor``, and what shares its memory, alone until `synchronize` returns:
    weights that are tied are one tensor, to be given once.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal.
    """
    source = view_of(tensor, label_of("broadcast", name), MOVED)
    prepared = submission.broadcast(name, *source.spec, root_rank, process_set)
    handle = prepared.start(source.address, source.address, source.stream)
    count_write(tensor)  # on the root too, so that all ranks are told of the same mistake
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
    source = view_of(tensor, label_of("broadcast", name), MOVED)
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

    Arguments and errors are those of `broadcast`. Autograd counts the change
    as a write, but has no gradient of it.
    """
    return tensor_of(broadcast_async_(tensor, root_rank, name, process_set))


class _Broadcast(torch.autograd.Function):
    verb = "broadcast"

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
        (gradient,) = averages_of_gradients(grads, name, process_set)
        if _core.rank() != root_rank:
            gradient.zero_()
        return gradient, None, None, None
