"""The all-reduce of sparse tensors: every rank gathers the elements of all, and adds them up."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

from aiacc.collectives.reduce_ops import Average, Sum
from aiacc.torch.distributed.collectives import kind_of
from aiacc.torch.distributed.groups import Group
from aiacc.torch.distributed.work import Step
from aiacc.torch.ops import sparse


def reduce_sparse(group: Group, tensor: torch.Tensor, op: Any) -> Step:
    """Add up tensors in COO layout, in place. They may hold different numbers of elements.

    Raises:
        ValueError: A reduction that is not a sum.
    """
    kind = kind_of(op)
    if kind not in (ReduceOp.SUM, ReduceOp.AVG):
        raise ValueError(f"[torch] reduction {kind} of a sparse tensor (expected SUM or AVG)")
    reduction = Average if kind == ReduceOp.AVG else Sum
    own = tensor.detach().coalesce()
    parts = sparse.parts_of(own)
    # Paired with reductions of dense tensors, of which the ranks so notice that these are none.
    verb = f"allreduce@{group.series}"
    handle = sparse.submit_parts(None, parts, reduction, group.process_set, verb)

    def add_up(handle: int) -> None:
        divide_by = sparse.divisor(reduction, group.process_set)
        # Not into what `detach` gives: that shares the elements, but not how many there are.
        tensor.copy_(sparse.take_parts(handle, parts, own, divide_by))

    return handle, add_up, tuple(parts)
