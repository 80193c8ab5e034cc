"""All-gather of a group of tensors, which become ready together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from aiacc.collectives import submission
from aiacc.collectives.handles import pending
from aiacc.collectives.labels import label_of
from aiacc.process_sets import ProcessSet, global_process_set, rank_and_size
from aiacc.torch.adapter import MOVED, take_outputs, tensor_of, wait
from aiacc.torch.ops.allgather import allgather_async
from aiacc.torch.ops.autograd import apply_to_group, grad_name
from aiacc.torch.ops.grouped_allreduce import averages_of_gradients
from aiacc.torch.ops.tensor_list import (
    Tensors,
    group_of,
    group_view_of,
    tensors_of,
)


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
    group = group_of(tensors, "grouped_allgather", name, rows=True, carriers=MOVED)
    view = group_view_of(group, label_of("grouped_allgather", name), MOVED)
    prepared = submission.allgather(name, *view.spec, process_set)
    handle = prepared.start(view.addresses, (0,) * len(group), view.stream)
    pending[handle] = (wait, group, None, lambda handle: take_outputs(handle, group))
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
    group = group_of(tensors, "grouped_allgather", name, rows=True, carriers=MOVED)
    return apply_to_group(_GroupedAllgather, group, name, process_set)


class _GroupedAllgather(torch.autograd.Function):
    verb = "grouped_allgather"

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        if ctx is not None:
            ctx.arguments = (grad_name(name), [tensor.shape[0] for tensor in tensors], process_set)
        return tuple(tensors_of(grouped_allgather_async(tensors, name, process_set)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        name, rows, process_set = ctx.arguments
        reduced = averages_of_gradients(grads, name, process_set)
        rows_of = tensor_of(
            allgather_async(
                torch.tensor([rows], device="cpu"), name and name + ".rows", process_set
            )
        )
        begins = rows_of[: rank_and_size(process_set).rank].sum(0).tolist()
        own = [g.narrow(0, b, n) for g, b, n in zip(reduced, begins, rows, strict=True)]
        return None, None, *own
