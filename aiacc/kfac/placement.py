"""Which rank inverts which factor. Pure.

Shi, Zhang, Li, "Accelerating Distributed K-FAC with Smart Parallelism of Computing and
Communication Tasks" (SPD-KFAC), ICDCS 2021 (arXiv 2107.06533): a factor is *CT*, inverted by its
owner and sent to all, or *NCT*, inverted by everybody. The paper compares the two for each factor
by itself; its release compares the dimension with a constant. `place` asks when the whole stage
ends (`stage`), for that is what a step waits for.

What is proven, and tested:

* Graham 1969: with everything CT, the longest processing time first gives a computation of at most
  4/3 - 1/(3m) times the least there is, m ranks. As NCT factors add the same to every rank, that
  holds for the CT factors of any placement of `place`, too.
* `place` is never worse than everything CT or everything NCT, both of which it tries.
* No placement ends before `bound_s`. So `finish_s / bound_s - 1` is what may be left to gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiacc.kfac.costs import InversionCost
from aiacc.kfac.stage import StageCosts, StageModel, check
from aiacc.planning.division.placement import Owners, assign, largest_first

#: Numbers of CT factors between two others that are tried at a time; a stage takes O(n^2).
TRIED = 32


@dataclass(frozen=True)
class Placement:
    """Who inverts what."""

    owners: Owners
    finish_s: float
    #: No placement ends earlier, in this model.
    bound_s: float


def place(dims: Sequence[int], ranks: int, costs: StageCosts) -> Placement:
    """Owners by the longest processing time, for so many of the largest factors as pays.

    Tried are no CT factor, all, and every number behind which dimensions change, then all numbers
    between the neighbours of the best, or `TRIED` of them and then those between the neighbours of
    the best again. Equal on all ranks that are given the same arguments.

    Args:
        dims: Dimensions of the factors.
        ranks: That share them.
        costs: Of the stage.
    """
    model = StageModel(dims, ranks, costs)
    order = model.order
    every = assign(model.times, ranks, order)

    def first(number: int) -> Owners:
        owned = set(order[:number])
        return tuple(every[factor] if factor in owned else None for factor in range(len(dims)))

    count = len(dims) if ranks > 1 else 0
    changes = [n for n in range(1, count) if dims[order[n - 1]] != dims[order[n]]]
    seconds: dict[int, float] = {}
    trying = sorted({0, *changes, count})
    while trying:
        seconds |= {number: model.stage(first(number)).finish_s for number in trying}
        tried = sorted(seconds)
        at = tried.index(min(tried, key=seconds.__getitem__))
        low, high = tried[max(at - 1, 0)], tried[min(at + 1, len(tried) - 1)]
        stride = max(1, (high - low) // TRIED)
        trying = [n for n in range(low + 1, high, stride) if n not in seconds]
    best = min(seconds, key=lambda number: (seconds[number], number))
    return Placement(first(best), seconds[best], min(seconds[best], model.bound()))


def placing(costs: StageCosts) -> Callable[[Sequence[int], int], Owners]:
    """`place` with these costs: what says the owners of dimensions among a number of ranks."""
    return lambda dims, ranks: place(dims, ranks, costs).owners


def longest_first(dims: Sequence[int], ranks: int, inversion: InversionCost) -> Owners:
    """Every factor to the rank that has the least to do, the largest first."""
    check(dims, ranks)
    loads = [float(inversion.seconds(dim)) for dim in dims]
    return assign(loads, ranks, largest_first(dims))


def in_turn(dims: Sequence[int], ranks: int) -> Owners:
    """One rank after the other, as the paper's MPD-KFAC."""
    check(dims, ranks)
    return tuple(factor % ranks for factor in range(len(dims)))


def by_dimension(dims: Sequence[int], ranks: int, least: int = 1400) -> Owners:
    """The placement of the paper's release.

    CT from a dimension of ``least`` on, and a load is a sum of dimensions.
    """
    check(dims, ranks)
    return assign(dims, ranks, [factor for factor in largest_first(dims) if dims[factor] >= least])
