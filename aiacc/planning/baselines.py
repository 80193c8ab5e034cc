"""What planners are measured against: schedules that need no model. Pure."""

from __future__ import annotations

from aiacc.planning.plan import Plan
from aiacc.planning.problem import Problem
from aiacc.planning.schedule import planned

_MIB = 1 << 20


def per_tensor(problem: Problem) -> Plan:
    """Every gradient by itself as soon as it is ready.

    Wait-free back-propagation (WFBP): Zhang et al., "Poseidon", ATC 2017.
    """
    return planned(problem, "per_tensor", list(range(1, len(problem) + 1)))


def single(problem: Problem) -> Plan:
    """All gradients of a kind together after the backward pass; the papers' SyncEASGD."""
    problem = problem.by_kind()
    return planned(problem, "single", problem.ends_of_limit(float("inf")))


def threshold(problem: Problem, mib: float = 25.0) -> Plan:
    """Buckets that are closed when they have so many MiB, those of each kind on their own."""
    if not mib > 0:
        raise ValueError(f"buckets of {mib} MiB (expected > 0)")
    problem = problem.by_kind()
    return planned(problem, f"threshold({mib:g})", problem.ends_of_limit(mib * _MIB))


def ddp(problem: Problem) -> Plan:
    """Buckets as DistributedDataParallel makes them unless it is told otherwise.

    The first one of each kind is closed when it has 1 MiB, so that it leaves early; the others at
    25. The limits are those of torch, ``_DEFAULT_FIRST_BUCKET_BYTES`` and ``bucket_cap_mb``; it
    follows them from the second step on, when it knows the order of gradients.
    """
    problem = problem.by_kind()
    return planned(problem, "ddp", problem.ends_of_limit(25 * _MIB, 1 * _MIB))
