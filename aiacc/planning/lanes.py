"""A plan for several operations at a time, with a bound that is proven for each instance. Pure.

Simultaneous all-reduces hide startups and fill what one flow cannot (Shi et al., "Exploiting
Simultaneous Communications to Accelerate Data Parallel Distributed Deep Learning", INFOCOM 2021,
with two; AIACC-Training with many). Where c are under way, one of M bytes takes T(M, c).

The bound: give an operation the weight w(M) = min over c of T(M, c) / c. While c of them are under
way, their weights disappear at a rate of at most the sum over them of (T / c) / T = 1. Buckets with
any tensor from i on start after ready(i), and their weights are at least those of the best
partition of the tensors from i on, g(i), as w does not fall as bytes grow. So no plan ends before

    max over i of  ready(i) + g(i)

The plan itself comes from candidates of several planners whose boundaries are then moved while that
helps; by how much it may miss the best one is `Plan.predicted_s / Plan.bound_s - 1`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aiacc.planning.cost import ALL_REDUCE
from aiacc.planning.optimal import best_ends_of_each
from aiacc.planning.plan import Plan, cut
from aiacc.planning.problem import Floats, Problem, kept, starts_of
from aiacc.planning.schedule import all_reduce_step

_MIB = 1 << 20
_LIMITS = (1, 2, 4, 8, 16, 25, 32, 64, 128)
_MOST = 64
#: Up to so many operations at a time each number is tried; beyond, powers of two.
_EACH = 8
#: Buckets that moving boundaries may simulate.
_EFFORT = 12_000


def lanes(problem: Problem, most: int) -> Plan:
    """Buckets for up to ``most`` operations at a time; never worse than `optimal` with one.

    O(most L^2) time for L tensors, and O(most L) memory besides 32 MiB of costs that are kept.
    """
    if not 1 <= most <= _MOST:
        raise ValueError(f"lanes({most}) (expected 1 to {_MOST}, as of AIACC_LANES)")
    count, late = len(problem), problem.late.__getitem__
    numbers = range(1, most + 1)
    shared_by = np.array(numbers)[:, None]
    tried = [n for n in numbers if n <= _EACH or n & (n - 1) == 0 or n == most]
    rows = np.array(tried) - 1

    def by_lanes(j: int) -> Floats:
        """A row for each number that is tried, then each divided by that, then the weights."""
        costs = np.array([problem.costs_to(j, ALL_REDUCE, number) for number in numbers])
        shares = costs / shared_by
        return np.vstack([costs[rows], shares[rows], shares.min(axis=0)])

    some = len(tried)
    costs_to = kept(by_lanes, (2 * some + 1) * count * count // 2)
    found = [ends for ends, _ in best_ends_of_each(2 * some + 1, count, costs_to, late)]
    limited = [problem.ends_of_limit(limit * _MIB) for limit in _LIMITS]
    candidates: list[tuple[float, int, list[int]]] = []
    for row, number in enumerate(tried):
        different = {tuple(one) for one in (found[row], found[some + row], found[-1], *limited)}
        for ends in map(list, different):
            candidates.append((all_reduce_step(problem, ends, number), number, ends))
    seconds, number, ends = min(candidates)
    bound = max(problem.trace.compute_s, _bound(problem, lambda j: costs_to(j)[-1]))
    ends, seconds = _improved(
        problem, ends, seconds, lambda moved: all_reduce_step(problem, moved, number), bound
    )
    return Plan(
        planner=f"lanes({most})",
        buckets=cut(problem.tensors, ends),
        lanes=number,
        predicted_s=seconds,
        bound_s=min(bound, seconds),
    )


def _bound(problem: Problem, weights_to: Callable[[int], Floats]) -> float:
    """The bound above. Cheapest partitions of the tensors from each one on, from the last."""
    cheapest = np.full(len(problem) + 1, np.inf)
    cheapest[-1] = 0.0
    for j in range(len(problem), 0, -1):
        np.minimum(cheapest[:j], weights_to(j) + cheapest[j], out=cheapest[:j])
    return float(np.max(problem.ready + cheapest[:-1]))


def _improved(
    problem: Problem,
    ends: list[int],
    seconds: float,
    step: Callable[[list[int]], float],
    bound: float,
) -> tuple[list[int], float]:
    """Moves, removes and adds ends of buckets, from the last one, while that shortens the step."""
    left, reach = _EFFORT, max(1, len(problem) // 8)
    while reach >= 1 and left > 0 and seconds > bound * (1 + 1e-6):
        better = False
        for number in range(len(ends) - 2, -1, -1):
            if number >= len(ends) - 1 or left <= 0:
                continue
            others = ends[:number] + ends[number + 1 :]
            for moved in (
                others,
                sorted({*others, ends[number] - reach}),
                sorted({*others, ends[number] + reach}),
                sorted({*ends, ends[number] - reach}),
                sorted({*ends, ends[number] + reach}),
            ):
                if moved[0] < 1 or moved[-1] != len(problem) or not _is_allowed(problem, moved):
                    continue
                left -= len(moved)
                found = step(moved)
                if found < seconds * (1 - 1e-9):
                    ends, seconds, better = moved, found, True
                    break
        reach = reach if better else reach // 2
    return ends, seconds


def _is_allowed(problem: Problem, ends: list[int]) -> bool:
    return bool((problem.first[ends] <= starts_of(ends)).all())
