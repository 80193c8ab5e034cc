"""Reduction of sparse tensors: the rows of all ranks, gathered in one operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from aiacc.collectives import submission
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import Average, Sum, check_op, name_of_op
from aiacc.exceptions import MismatchError
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch.adapter import take_outputs, wait
from aiacc.torch.ops.tensor_list import group_view_of


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start reducing a sparse COO tensor over all ranks.

    Collective: every rank, with the same name, size, dtype, op, numbers of sparse and of dense
    dimensions, and any number of entries.
    Blocks: never; what is returned blocks, until the result is there.

    Args:
        tensor: Sparse COO tensor on the CPU or a CUDA device, coalesced or not; only read.
        name: Pairs this call with the calls of the other ranks.
        op: Average or Sum.
        process_set: Ranks that take part.

    Returns:
        Function without arguments to be called once; it returns the result, a sparse tensor of the
        same dtype, but for averages of integers, which are of torch's default dtype.

    Raises:
        ValueError: Bad argument, or an operation of this name is under way.
        CollectiveError: Not initialised, or an earlier failure was fatal; from the function: the
            operation failed, `MismatchError` if the ranks disagree about it.
    """
    check_sparse(tensor, label_of("sparse_allreduce_async", name))
    check_sparse_op(op, label_of("sparse_allreduce_async", name))
    parts = parts_of(tensor)
    handle = submit_parts(name, parts, op, process_set, "sparse_allreduce")
    return partial(_result, handle, parts, tensor, divisor(op, process_set))


def _result(
    handle: int, parts: list[torch.Tensor], like: torch.Tensor, divide_by: int | None
) -> torch.Tensor:
    try:
        wait(handle, parts)
    except MismatchError as error:
        raise with_remedy(error) from None
    return take_parts(handle, parts, like, divide_by)


def check_sparse(tensor: torch.Tensor, what: str) -> None:
    """Raise ValueError unless ``tensor`` is a sparse COO tensor on the CPU or a CUDA device."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"[torch] {what}: {type(tensor).__name__} (expected torch.Tensor)")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(
            f"[torch] {what}: tensor of layout {tensor.layout} (expected torch.sparse_coo); "
            "use tensor.to_sparse(), or a dense allreduce"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"[torch] {what}: tensor on device {tensor.device} (expected cpu or cuda); use "
            "tensor.cpu()"
        )


def check_sparse_op(op: int, what: str) -> None:
    """Raise ValueError unless ``op`` is Average or Sum."""
    if check_op(op) not in (Average, Sum):
        raise ValueError(
            f"[torch] {what}: op={name_of_op(op)} (expected Average or Sum for sparse "
            "tensors); use tensor.to_dense(), or DistributedOptimizer(..., sparse_as_dense=True)"
        )


def divisor(op: int, process_set: ProcessSet) -> int | None:
    """What the sum over the ranks is divided by, if it is."""
    return (process_set.size() or 1) if op == Average else None


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What is gathered of a sparse tensor: its indices and its values, a row for each entry.

    Tensors without rows follow, one for each dimension, whose extent the ranks so agree on, as they
    do on the dtype and on what else the shapes of the rows say.
    """
    tensor = tensor.detach()
    values = tensor._values()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    extents = [values.new_empty((0, extent), dtype=torch.uint8) for extent in tensor.shape]
    return [tensor._indices().t().contiguous(), values.resolve_neg().contiguous(), *extents]


def submit_parts(
    name: str | None, parts: list[torch.Tensor], op: int, process_set: ProcessSet, verb: str
) -> int:
    """Start gathering what `parts_of` gave, of all ranks, and return the core's handle."""
    view = group_view_of(parts, label_of(verb, name))
    prepared = submission.allgather(name, *view.spec, process_set, verb, op)
    return prepared.start(view.addresses, (0,) * len(parts), view.stream)


def take_parts(
    handle: int, parts: list[torch.Tensor], like: torch.Tensor, divide_by: int | None
) -> torch.Tensor:
    """Result of `submit_parts` of ``parts``: a coalesced tensor of the size of ``like``.

    It has the dtype of ``like``, unless it is a quotient of integers.
    """
    with torch.no_grad():
        indices, values, *_ = take_outputs(handle, parts)
        if like.is_complex():
            values = torch.view_as_complex(values)
        total = torch.sparse_coo_tensor(
            indices.t(), values, like.shape, device=values.device, check_invariants=True
        ).coalesce()
        return total if divide_by is None else (total / divide_by).coalesce()


def empty_like(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """A sparse gradient without entries, of so many sparse dimensions."""
    indices = parameter.new_empty((sparse_dim, 0), dtype=torch.int64)
    values = parameter.new_empty((0, *parameter.shape[sparse_dim:]), requires_grad=False)
    return torch.sparse_coo_tensor(
        indices, values, parameter.shape, device=parameter.device, check_invariants=True
    )


def with_remedy(error: MismatchError) -> MismatchError:
    """``error`` about a sparse tensor, which says what helps."""
    return MismatchError(
        f"{error}. (A sparse tensor travels as a group: its indices, its values, and an empty "
        "tensor for each of its dimensions.) Give sparse tensors of the same size, dtype and "
        "number of sparse dimensions on every rank, or reduce dense ones: tensor.to_dense(), "
        "DistributedOptimizer(..., sparse_as_dense=True)"
    )
