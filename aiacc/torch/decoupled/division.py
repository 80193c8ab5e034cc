"""Which parameters share a bucket: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence

from aiacc.planning.execution import runs_of
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
        [whole[place] for place in run]
        for bucket in plan
        for whole in map(sorted, divided(bucket, kinds))
        for run in runs_of([gradients[i].elements for i in whole], parts_of_each)
    ]
    planned = {position for part in parts for position in part}
    parts += [[position] for position in range(len(gradients)) if position not in planned]
    return sorted(parts)
