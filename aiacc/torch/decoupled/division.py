"""Which parameters share a bucket: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence

from aiacc.torch.reducer.plan import Gradient, Planner, checked, divided


def buckets(
    planner: Planner, gradients: Sequence[Gradient], parts_of_each: int = 1
) -> list[list[int]]:
    """Positions in ``gradients``, those of parameters in the order of the forward pass.

    A bucket has one dtype and device: one of the planner's that has several becomes several.
    Buckets are in the order in which the forward pass needs the first of each. What the planner
    leaves out is by itself.

    Each bucket becomes as many as ``parts_of_each``, of about equal bytes: operations that share
    the network, for a planner has one bucket at a time. Several whole ones at a time would keep
    what the forward pass needs first waiting for what it needs later.
    """
    plan = checked(planner.divide(gradients), len(gradients), planner.argument)
    kinds = [(gradient.dtype, gradient.device_key) for gradient in gradients]
    parts = [
        part
        for bucket in plan
        for whole in divided(bucket, kinds)
        for part in _runs(sorted(whole), gradients, parts_of_each)
    ]
    planned = {position for part in parts for position in part}
    parts += [[position] for position in range(len(gradients)) if position not in planned]
    return sorted(parts)


def _runs(bucket: Sequence[int], gradients: Sequence[Gradient], count: int) -> list[list[int]]:
    """``bucket`` in at most ``count`` runs; each ends with the gradient that fills its share."""
    total = sum(gradients[i].elements for i in bucket)
    runs: list[list[int]] = [[]]
    filled = 0
    for position in bucket:
        if runs[-1] and filled * count >= total * len(runs):
            runs.append([])
        runs[-1].append(position)
        filled += gradients[position].elements
    return runs
