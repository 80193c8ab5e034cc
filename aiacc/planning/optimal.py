"""The exact plan for one operation at a time. Pure.

Buckets follow each other, so the last of them ends at

    f(0) = 0,   f(j) = min over i < j of  max(f(i), ready(j)) + T(bytes of i .. j)

which is exact for any cost that does not fall as bytes grow: the end of what follows never improves
when the end of a prefix gets worse. The published rule (`mgwfbp`) looks at one neighbour at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aiacc.planning.plan import Plan
from aiacc.planning.problem import Floats, Problem
from aiacc.planning.schedule import planned

#: Of the best step time, within which `optimal_k` prefers fewer buckets.
SLACK = 0.005


def optimal(problem: Problem) -> Plan:
    """The shortest step; among equals, buckets that end late in the backward pass. O(L^2)."""
    # Not by a matrix, which for 6,000 tensors would be 0.3 GB.
    ends, _ = best_ends(len(problem), problem.costs_to, problem.late.__getitem__)
    return planned(problem, "optimal", ends, exact=True)


def best_ends(
    count: int, costs_to: Callable[[int], Floats], earliest_of: Callable[[int], Floats | float]
) -> tuple[list[int], float]:
    """Where buckets (i, j) of ``count`` tensors end so that the last one ends soonest, and when.

    Args:
        count: Tensors.
        costs_to: Seconds of the buckets (0, j), (1, j) ... (j - 1, j), by j.
        earliest_of: When each of these may begin, or all of them.
    """
    finish = np.zeros(count + 1)
    start_of = [0] * (count + 1)
    for j in range(1, count + 1):
        times = np.maximum(finish[:j], earliest_of(j)) + costs_to(j)
        start_of[j] = int(np.argmin(times))
        finish[j] = times[start_of[j]]
    ends, at = [], count
    while at > 0:
        ends.append(at)
        at = start_of[at]
    return ends[::-1], float(finish[count])


def columns(matrix: Floats) -> Callable[[int], Floats]:
    """What `best_ends` wants to know, of a matrix by start and end."""
    return lambda j: matrix[:j, j]


def optimal_k(problem: Problem, slack: float = SLACK) -> Plan:
    """The fewest buckets whose step is at most ``slack``, a fraction, longer than the best.

    Where communication is hidden, thousands of plans are as good, and those of many small buckets
    rely on a model of startups that nobody measured that well. O(k L^2).
    """
    if not slack >= 0:
        raise ValueError(f"slack {slack} (expected >= 0)")
    count, costs = len(problem), problem.costs()
    compute_s = problem.trace.compute_s
    late = problem.late
    best = max(compute_s, best_ends(count, columns(costs), late.__getitem__)[1])
    finish = np.full(count + 1, np.inf)
    finish[0] = 0.0
    choices = []
    while not max(compute_s, finish[count]) <= best * (1 + slack):
        times = np.maximum(finish[:, None], late) + costs
        choices.append(np.argmin(times, axis=0))
        finish = np.min(times, axis=0)
    ends, at = [], count
    for choice in reversed(choices):
        ends.append(at)
        at = int(choice[at])
    return planned(problem, "optimal_k", ends[::-1])
