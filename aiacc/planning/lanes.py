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
from aiacc.planning.optimal import best_ends, columns
from aiacc.planning.plan import Plan, cut
from aiacc.planning.problem import Floats, Problem
from aiacc.planning.schedule import all_reduce_step

_MIB = 1 << 20
_LIMITS = (1, 2, 4, 8, 16, 25, 32, 64, 128)
#: Steps that moving boundaries may evaluate.
_MOVES = 400


def lanes(problem: Problem, most: int) -> Plan:
    """Buckets for up to ``most`` operations at a time; never worse than `optimal` with one."""
    if most < 1:
        raise ValueError(f"lanes({most}) (expected >= 1)")
    candidates: list[tuple[float, int, list[int]]] = []

    def offer(number: int, ends: list[int]) -> None:
        candidates.append((all_reduce_step(problem, ends, number), number, ends))

    costs = [problem.costs(ALL_REDUCE, number) for number in range(1, most + 1)]
    weights = np.asarray(
        np.minimum.reduce([of_one / number for number, of_one in enumerate(costs, start=1)])
    )
    count, late = len(problem), problem.late.__getitem__
    cheapest, _ = best_ends(count, columns(weights), late)
    for number, of_one in enumerate(costs, start=1):
        offer(number, best_ends(count, columns(of_one / number), late)[0])
        offer(number, best_ends(count, columns(of_one), late)[0])
        offer(number, cheapest)
        for limit in _LIMITS:
            offer(number, problem.ends_of_limit(limit * _MIB))
    seconds, number, ends = min(candidates)
    bound = max(problem.trace.compute_s, _bound(problem, weights))
    ends, seconds = _improved(
        problem, ends, seconds, lambda moved: all_reduce_step(problem, moved, number), bound
    )
    return Plan(
        planner=f"lanes({most})",
        buckets=cut(problem.trace, ends),
        lanes=number,
        predicted_s=seconds,
        bound_s=min(bound, seconds),
    )


def _bound(problem: Problem, weights: Floats) -> float:
    """The bound above. Cheapest partitions of the tensors from i on, with i from the last."""
    count = len(problem)
    cheapest = np.zeros(count + 1)
    bound = 0.0
    for i in range(count - 1, -1, -1):
        cheapest[i] = np.min(weights[i, i + 1 :] + cheapest[i + 1 :])
        bound = max(bound, problem.ready[i] + cheapest[i])
    return float(bound)


def _improved(
    problem: Problem,
    ends: list[int],
    seconds: float,
    step: Callable[[list[int]], float],
    bound: float,
) -> tuple[list[int], float]:
    """Moves, removes and adds ends of buckets, from the last one, while that shortens the step."""
    moves, reach = 0, max(1, len(problem) // 8)
    while reach >= 1 and moves < _MOVES and seconds > bound * (1 + 1e-6):
        better = False
        for number in range(len(ends) - 2, -1, -1):
            if number >= len(ends) - 1:
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
                moves += 1
                found = step(moved)
                if found < seconds * (1 - 1e-9):
                    ends, seconds, better = moved, found, True
                    break
        reach = reach if better else reach // 2
    return ends, seconds


def _is_allowed(problem: Problem, ends: list[int]) -> bool:
    return bool(problem.allowed[[0, *ends[:-1]], ends].all())
