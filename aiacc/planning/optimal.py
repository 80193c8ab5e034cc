"""The exact plan for one operation at a time. Pure.

Buckets follow each other, so the last of them ends at

    f(0) = 0,   f(j) = min over i < j of  max(f(i), ready(j)) + T(bytes of i .. j)

which is exact for any cost that does not fall as bytes grow: the end of what follows never improves
when the end of a prefix gets worse. The published rule (`mgwfbp`) looks at one neighbour at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aiacc.planning.plan import Plan
from aiacc.planning.problem import Floats, Problem, kept
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
    (best,) = best_ends_of_each(1, count, costs_to, earliest_of)
    return best


def best_ends_of_each(
    programmes: int,
    count: int,
    costs_to: Callable[[int], Floats],
    earliest_of: Callable[[int], Floats | float],
) -> list[tuple[list[int], float]]:
    """`best_ends` by several costs at once: ``costs_to`` has a row of each, or one for all."""
    finish = np.zeros((programmes, count + 1))
    start_of = np.zeros((programmes, count + 1), np.int32)
    every = np.arange(programmes)
    for j in range(1, count + 1):
        times = np.maximum(finish[:, :j], earliest_of(j))
        times += costs_to(j)
        start_of[:, j] = start = times.argmin(axis=1)
        finish[:, j] = times[every, start]
    return [
        (_traced_back(row.tolist(), count), float(end))
        for row, end in zip(start_of, finish[:, count], strict=True)
    ]


def _traced_back(start_of: Sequence[int], count: int) -> list[int]:
    ends, at = [], count
    while at > 0:
        ends.append(at)
        at = start_of[at]
    return ends[::-1]


def optimal_k(problem: Problem, slack: float = SLACK) -> Plan:
    """The fewest buckets whose step is at most ``slack``, a fraction, longer than the best.

    Where communication is hidden, thousands of plans are as good, and those of many small buckets
    rely on a model of startups that nobody measured that well. O(k L^2) time and O(k L) memory for
    k buckets besides those that the constraints ask for.
    """
    if not slack >= 0:
        raise ValueError(f"slack {slack} (expected >= 0)")
    count, late, first = len(problem), problem.late, problem.first.tolist()
    costs_to = kept(problem.costs_to, count * count)
    _, best = best_ends(count, costs_to, late.__getitem__)
    enough = max(problem.trace.compute_s, best) * (1 + slack)
    begins_run = (np.diff(problem.runs, prepend=-1, append=-1) != 0).tolist()
    fewer = np.full(count + 1, np.inf)
    choices: list[npt.NDArray[np.int32]] = []
    while True:
        levels = max(4, len(choices))  # as many again as there are
        # By buckets that begin inside a run, and by tensors that are sent: when they have arrived,
        # and when the next bucket may begin, which may be such a one.
        done, free = np.zeros((2, levels, count + 1))
        start_of = np.zeros((levels, count + 1), np.int32)
        every = np.arange(levels)
        for j in range(1, count + 1):
            low = first[j]
            times = np.maximum(free[:, low:j], late[j])
            times += costs_to(j)[low:]
            start = times.argmin(axis=1)
            start_of[:, j] = start + low
            done[:, j] = times[every, start]
            if begins_run[j]:
                free[:, j] = done[:, j]
            else:
                free[0, j], free[1:, j] = fewer[j], done[:-1, j]
        choices.extend(start_of)
        steps = np.maximum(problem.trace.compute_s, done[:, count])
        if steps[-1] <= enough:
            break
        fewer = done[-1]
    level = len(choices) - levels + int(np.argmax(steps <= enough))
    ends, at = [], count
    while at > 0:
        ends.append(at)
        at = int(choices[level][at])
        level -= not begins_run[at]
    plan = planned(problem, "optimal_k", ends[::-1])
    return replace(plan, bound_s=max(problem.trace.compute_s, best))
