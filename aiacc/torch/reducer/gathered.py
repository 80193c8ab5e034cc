"""What all ranks keep of gradients together."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from aiacc.collectives.handles import synchronize
from aiacc.collectives.objects import broadcast_object, gather_objects
from aiacc.collectives.reduce_ops import Sum
from aiacc.process_sets import ProcessSet
from aiacc.torch.ops.allreduce import allreduce_async_
from aiacc.torch.reducer.consensus import alike
from aiacc.torch.reducer.kept import KNOWN


def add_up(state: dict[str, Any], process_set: ProcessSet) -> None:
    """Replace what is kept in a state of `Feedback` by its sums over the ranks.

    Ranks that have come anew have nothing yet, and get the names, shapes and scale of the others.

    Collective: every rank of the process set, between the same steps. Blocks: until the sums are
    there.
    """
    kept = state["kept"]
    mine = sorted(
        (kind, name, tuple(tensor.shape))
        for kind, tensors in kept.items()
        for name, tensor in tensors.items()
        if kind != KNOWN  # that is the same on all ranks
    )
    if not alike(str(mine), "feedback.alike", process_set):
        everyones = _different((mine, state["scale"]), process_set)
        state["scale"] = next(scale for those, scale in everyones if those)
        mine = sorted({one for those, _ in everyones for one in those})
        for kind, name, shape in mine:  # in host memory, where ranks with nothing have zeros
            zeros = torch.zeros(shape, dtype=torch.float32, device="cpu")
            kept[kind][name] = kept[kind].get(name, zeros).cpu()
    handles = [  # all at once, for each of them waits for the network
        allreduce_async_(
            kept[kind][name], op=Sum, name=f"feedback.{kind}.{name}", process_set=process_set
        )
        for kind, name, _ in mine
    ]
    for handle in handles:
        synchronize(handle)


def _different(mine: Any, process_set: ProcessSet) -> list[Any]:
    """What the ranks have, each once: most ranks have the same, and all of it would be much."""
    digest = hashlib.sha256(repr(mine).encode()).digest()
    digests = gather_objects(digest, "feedback.digests", process_set)
    ranks = process_set.ranks or ()
    firsts = dict(reversed(list(zip(digests, ranks, strict=True))))
    return [
        broadcast_object(mine, rank, "feedback.kept", process_set)
        for rank in sorted(firsts.values())
    ]
