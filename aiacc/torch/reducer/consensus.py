"""Questions on which the ranks have to give one answer."""

from __future__ import annotations

from typing import Any

import torch

from aiacc.collectives.objects import broadcast_object
from aiacc.collectives.reduce_ops import Min
from aiacc.process_sets import ProcessSet
from aiacc.torch.mpi_ops import allreduce_


def answer_of_first(answer: Any, question: str, process_set: ProcessSet) -> Any:
    """``answer`` of the lowest rank of ``process_set``, on every rank of it.

    Collective: every rank of the set, with the same ``question``.
    Blocks: until the answer is there.
    """
    root = process_set.ranks[0] if process_set.ranks else 0
    return broadcast_object(answer, root, question, process_set)


def everywhere(true_here: bool, question: str, process_set: ProcessSet) -> bool:
    """Whether ``true_here`` is true on every rank of ``process_set``.

    Collective: every rank of the set, with the same ``question``.
    Blocks: until all have answered.
    """
    vote = torch.tensor([int(true_here)], dtype=torch.uint8, device="cpu")
    return bool(allreduce_(vote, None, question, Min, process_set=process_set).item())
