"""The published rule for merging gradients. Pure.

Shi, Chu, Li, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms",
INFOCOM 2019 (arXiv 1811.11141), algorithm 1: merge a gradient into the next one if that is ready
before the bucket could have got through its startup. The rule decides once for each prefix and
never takes back; where startups are longer than the gaps between gradients, it ends with one bucket
after the whole backward pass. `optimal` has what it misses.
"""

from __future__ import annotations

from aiacc.planning.cost import ALL_REDUCE
from aiacc.planning.plan import Plan
from aiacc.planning.problem import Problem
from aiacc.planning.schedule import planned


def mgwfbp_paper(problem: Problem) -> Plan:
    """The greedy rule. For costs that are not a + b M, a startup is what merging the two saves."""
    cost, ready, prefix = problem.cost, problem.ready, problem.prefix

    def seconds(start: int, end: int) -> float:
        return float(cost.time(ALL_REDUCE, prefix[end] - prefix[start]))

    ends, first, free = [], 0, 0.0
    for last in range(len(problem) - 1):
        begins = max(free, ready[last])
        saved = seconds(first, last + 1) + seconds(last + 1, last + 2) - seconds(first, last + 2)
        if first < problem.first[last + 2] or ready[last + 1] >= begins + saved:
            free = begins + seconds(first, last + 1)
            first = last + 1
            ends.append(first)
    return planned(problem, "mgwfbp_paper", [*ends, len(problem)])
