"""A plan as settings for an unmodified DistributedDataParallel. Pure."""

from __future__ import annotations

from aiacc.planning.plan import DECOUPLED, Plan
from aiacc.planning.trace import Trace

_MIB = 1 << 20


def bucket_cap_mb_list(trace: Trace, plan: Plan) -> list[float]:
    """Limits in MiB with which DDP makes the plan's buckets.

    DDP fills a bucket in the order of the gradients and closes it when it has reached its limit, so
    any limit that only the bucket's last tensor reaches will do: here the middle of that range.

    Raises ValueError for a plan that DDP cannot follow.
    """
    if plan.schedule == DECOUPLED:
        raise ValueError("DDP has no decoupled schedule (expected a plan for all-reduces)")
    sizes = {tensor.name: tensor.bytes for tensor in trace.tensors}
    limits = []
    for bucket in plan.buckets:
        nbytes = [sizes[name] for name in bucket]
        limits.append((sum(nbytes) - nbytes[-1] / 2) / _MIB)
    return limits
