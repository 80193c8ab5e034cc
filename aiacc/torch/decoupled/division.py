"""Which parameters share a bucket: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence

from aiacc.torch.reducer.plan import Gradient, Planner, checked, divided


def buckets(planner: Planner, gradients: Sequence[Gradient]) -> list[list[int]]:
    """Positions in ``gradients``, those of parameters in the order of the forward pass.

    A bucket has one dtype and device: one of the planner's that has several becomes several.
    Buckets are in the order in which the forward pass needs the first of each. What the planner
    leaves out is by itself.
    """
    plan = checked(planner.divide(gradients), len(gradients), planner.argument)
    kinds = [(gradient.dtype, gradient.device_key) for gradient in gradients]
    wholes = [whole for bucket in plan for whole in map(sorted, divided(bucket, kinds))]
    planned = {position for whole in wholes for position in whole}
    wholes += [[position] for position in range(len(gradients)) if position not in planned]
    return sorted(wholes)
