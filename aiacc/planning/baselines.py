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
    """Buckets that are closed when they have so many MiB, as DDP closes its own at 25.

    Those of each kind are filled on their own, as DDP does.
    """
    if not mib > 0:
        raise ValueError(f"buckets of {mib} MiB (expected > 0)")
    problem = problem.by_kind()
    return planned(problem, f"threshold({mib:g})", problem.ends_of_limit(mib * _MIB))
