"""The all-reduce of sparse tensors: every rank gathers the elements of all, and adds them up."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

from aiacc.torch.adapter import take_output
from aiacc.torch.distributed.collectives import kind_of, submit_gather
from aiacc.torch.distributed.groups import Group
from aiacc.torch.distributed.work import Step


def reduce_sparse(group: Group, tensor: torch.Tensor, op: Any) -> list[Step]:
    """Add up tensors in COO layout, in place. They may hold different numbers of elements.

    Raises:
        ValueError: A reduction that is not a sum.
    """
    kind = kind_of(op)
    if kind not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ValueError(f"[torch] reduction {kind} of a sparse tensor (expected SUM or AVG)")
    own = tensor.detach().coalesce()
    # What the ranks have to agree on goes ahead of the positions.
    head = [own.sparse_dim(), own.dim(), *own.shape, own.indices().shape[1]]
    sent = torch.cat([own.indices().new_tensor(head), own.indices().t().reshape(-1)])
    values = own.values().resolve_neg().contiguous()
    rows: list[torch.Tensor] = []

    def take_rows(handle: int) -> None:
        rows.extend(_rows_of(take_output(handle, sent).cpu(), own))

    def add_up(handle: int) -> None:
        everyones = take_output(handle, values).reshape(-1, *values.shape[1:])
        if not rows:
            return  # `take_rows` has raised
        positions = torch.cat(rows).t().to(own.device)
        total = torch.sparse_coo_tensor(positions, everyones, own.shape).coalesce()
        # Not into what `detach` gives: that shares the elements, but not how many there are.
        tensor.copy_(total if kind == ReduceOp.SUM else total / group.size)

    return [
        (submit_gather(group, sent), take_rows, (sent,)),
        (submit_gather(group, values), add_up, (values,)),
    ]


def _rows_of(gathered: torch.Tensor, own: torch.Tensor) -> list[torch.Tensor]:
    """The positions of every rank's elements, one in a row."""
    expected = [own.sparse_dim(), own.dim(), *own.shape]
    rows = []
    while gathered.numel() > 0:
        sparse_dim, dim = gathered[:2].tolist()
        *found, count = gathered[: 2 + dim + 1].tolist()
        if found != expected:
            raise ValueError(
                f"[torch] all_reduce of sparse tensors: shape {list(own.shape)} with "
                f"{own.sparse_dim()} sparse dimensions here, {found[2:]} with {sparse_dim} on "
                "another rank (expected equal); give tensors of the same shape"
            )
        end = 2 + dim + 1 + count * sparse_dim
        rows.append(gathered[2 + dim + 1 : end].reshape(count, sparse_dim))
        gathered = gathered[end:]
    return rows
