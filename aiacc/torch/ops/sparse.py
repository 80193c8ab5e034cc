"""Reduction of sparse tensors: the rows of all ranks, gathered in one operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from aiacc.collectives import submission
from aiacc.collectives.labels import label_of
from aiacc.collectives.reduce_ops import Average, Sum, check_op, name_of_op
from aiacc.process_sets import ProcessSet, global_process_set
from aiacc.torch.adapter import take_output, view_of, wait

_INDEX_BYTES = 8


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start reducing a sparse COO tensor over all ranks.

    Collective: every rank, with the same name, size, dtype, numbers of sparse and of dense
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
    rows = pack_rows(tensor)
    handle = submit_rows("sparse_allreduce", name, rows, process_set)
    return partial(_result, handle, rows, tensor, divisor(op, process_set))


def _result(
    handle: int, rows: torch.Tensor, like: torch.Tensor, divide_by: int | None
) -> torch.Tensor:
    wait(handle, (rows,))
    return take_rows(handle, rows, like, divide_by)


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
    if op not in (Average, Sum):
        raise ValueError(
            f"[torch] {what}: op={name_of_op(check_op(op))} (expected Average or Sum for sparse "
            "tensors); use tensor.to_dense(), or DistributedOptimizer(..., sparse_as_dense=True)"
        )


def divisor(op: int, process_set: ProcessSet) -> int | None:
    """What the sum over the ranks is divided by, if it is."""
    return (process_set.size() or 1) if op == Average else None


def pack_rows(tensor: torch.Tensor) -> torch.Tensor:
    """One row of bytes per entry of a sparse tensor: its indices, then its values."""
    with torch.no_grad():
        indices, values = tensor._indices(), tensor._values()
        count = indices.shape[1]
        positions = indices.t().flatten().view(torch.uint8)
        contents = values.flatten().view(torch.uint8)
        widths = tensor.sparse_dim() * _INDEX_BYTES, _value_bytes(tensor)
        return torch.cat(
            [positions.reshape(count, widths[0]), contents.reshape(count, widths[1])], dim=1
        )


def _value_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the values of one entry."""
    return math.prod(tensor.shape[tensor.sparse_dim() :]) * tensor.element_size()


def unpack_rows(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack_rows`, for a tensor of the size and dtype of ``like``."""
    sparse_dim, split = like.sparse_dim(), like.sparse_dim() * _INDEX_BYTES
    indices = rows[:, :split].flatten().view(torch.int64).reshape(len(rows), sparse_dim)
    values = rows[:, split:].flatten().view(like.dtype)
    dense_shape = tuple(like.shape[sparse_dim:])
    return torch.sparse_coo_tensor(
        indices.t(), values.reshape(len(rows), *dense_shape), like.shape, check_invariants=True
    )


def submit_rows(verb: str, name: str, rows: torch.Tensor, process_set: ProcessSet) -> int:
    """Start gathering the rows of all ranks and return the core's handle."""
    source = view_of(rows, label_of(verb, name))
    prepared = submission.allgather(name, *source.spec, process_set, verb)
    return prepared.start(source.address, 0, source.stream)


def take_rows(
    handle: int, rows: torch.Tensor, like: torch.Tensor, divide_by: int | None
) -> torch.Tensor:
    """Result of `submit_rows` of ``rows``: a coalesced tensor of the size of ``like``.

    It has the dtype of ``like``, unless it is a quotient of integers.
    """
    with torch.no_grad():
        total = unpack_rows(take_output(handle, rows), like).coalesce()
        return total if divide_by is None else (total / divide_by).coalesce()


def empty_like(parameter: torch.Tensor) -> torch.Tensor:
    """A sparse gradient without entries, of the form that embeddings give."""
    indices = parameter.new_empty((1, 0), dtype=torch.int64)
    values = parameter.new_empty((0, *parameter.shape[1:]), requires_grad=False)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=True)
