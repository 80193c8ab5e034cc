"""Which rank inverts which factor. Pure.

Shi, Zhang, Li, "Accelerating Distributed K-FAC with Smart Parallelism of Computing and
Communication Tasks" (SPD-KFAC), ICDCS 2021 (arXiv 2107.06533): a factor is *CT*, inverted by its
owner and sent to all, or *NCT*, inverted by everybody. The paper compares the two for each factor
by itself; its release compares the dimension with a constant. `place` asks when the whole stage
ends, for that is what a step waits for.

The model (`stage`): ranks begin together. Each inverts what it owns, the largest first, then what
everybody inverts. One network carries the inverses, in the order in which they are there.

What is proven, and tested:

* Graham 1969: with everything CT, the longest processing time first gives a computation of at most
  4/3 - 1/(3m) times the least there is, m ranks. As NCT factors add the same to every rank, that
  holds for the CT factors of any placement of `place`, too.
* `place` is never worse than everything CT or everything NCT, both of which it tries.
* No placement ends before `bound_s`. So `finish_s / bound_s - 1` is what may be left to gain.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aiacc.kfac.costs import InversionCost, packed_bytes
from aiacc.planning.cost import ALL_GATHER, BROADCAST, CostModel
from aiacc.planning.optimal import best_ends
from aiacc.planning.problem import Floats

#: Owner of each factor; None: everybody inverts it.
Owners = tuple[int | None, ...]


@dataclass(frozen=True)
class StageCosts:
    """Of the stage in which factors are inverted."""

    inversion: InversionCost
    network: CostModel
    #: Whether inverses that wait travel together, by the exact plan for all-gathers. Else each is a
    #: broadcast.
    gathered: bool = False
    #: Share of the computation that hides communication: 1 where neither slows down the other, 0
    #: where inverses are sent when all are computed.
    overlap: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap {self.overlap} (expected 0 to 1)")


@dataclass(frozen=True)
class Stage:
    """When a stage is over, in seconds from its start."""

    #: The last rank has inverted everything.
    compute_s: float
    #: Everybody has all inverses.
    finish_s: float
    #: Factors that travel together, in the order in which they leave.
    sent: tuple[tuple[int, ...], ...]


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
    between the neighbours of the best. Equal on all ranks that are given the same arguments.

    Args:
        dims: Dimensions of the factors.
        ranks: That share them.
        costs: Of the stage.
    """
    model = _Model(dims, ranks, costs)
    every = _assigned(dims, ranks, model.times, range(len(dims)))
    order = _largest_first(dims)

    def first(number: int) -> Owners:
        owned = set(order[:number])
        return tuple(every[factor] if factor in owned else None for factor in range(len(dims)))

    count = len(dims) if ranks > 1 else 0
    changes = [n for n in range(1, count) if dims[order[n - 1]] != dims[order[n]]]
    tried = sorted({0, *changes, count})
    seconds = {number: model.stage(first(number)).finish_s for number in tried}
    at = tried.index(min(seconds, key=seconds.__getitem__))
    for number in range(tried[max(at - 1, 0)], tried[min(at + 1, len(tried) - 1)]):
        if number not in seconds:
            seconds[number] = model.stage(first(number)).finish_s
    best = min(seconds, key=lambda number: (seconds[number], number))
    return Placement(first(best), seconds[best], min(seconds[best], model.bound()))


def longest_first(dims: Sequence[int], ranks: int, inversion: InversionCost) -> Owners:
    """Every factor to the rank that has the least to do, the largest first."""
    _check(dims, ranks)
    return _assigned(dims, ranks, [float(inversion.seconds(dim)) for dim in dims], range(len(dims)))


def in_turn(dims: Sequence[int], ranks: int) -> Owners:
    """One rank after the other, as the paper's MPD-KFAC."""
    _check(dims, ranks)
    return tuple(factor % ranks for factor in range(len(dims)))


def by_dimension(dims: Sequence[int], ranks: int, least: int = 1400) -> Owners:
    """The placement of the paper's release.

    CT from a dimension of ``least`` on, and a load is a sum of dimensions.
    """
    _check(dims, ranks)
    chosen = [factor for factor, dim in enumerate(dims) if dim >= least]
    return _assigned(dims, ranks, dims, chosen)


def stage(dims: Sequence[int], owners: Owners, ranks: int, costs: StageCosts) -> Stage:
    """When the stage ends with these owners, by the model."""
    return _Model(dims, ranks, costs).stage(owners)


class _Model:
    def __init__(self, dims: Sequence[int], ranks: int, costs: StageCosts) -> None:
        _check(dims, ranks)
        self.ranks, self.costs = ranks, costs
        self.order = _largest_first(dims)
        self.times = [float(costs.inversion.seconds(dim)) for dim in dims]
        self.sizes = np.array([packed_bytes(dim) for dim in dims], float)
        self.sending = [float(costs.network.time(BROADCAST, size)) for size in self.sizes]

    def stage(self, owners: Sequence[int | None]) -> Stage:
        times, overlap = self.times, self.costs.overlap
        if self.ranks == 1:
            return Stage(sum(times), sum(times), ())
        everybody = sum(time for time, owner in zip(times, owners, strict=True) if owner is None)
        loads = [0.0] * self.ranks
        done: list[tuple[float, int]] = []
        for factor in self.order:
            owner = owners[factor]
            if owner is not None:
                loads[owner] += times[factor]
                done.append((loads[owner], factor))
        done.sort()
        compute_s = max(loads) + everybody
        if not done:
            return Stage(compute_s, compute_s, ())
        # Only a share of the computation hides anything: as if it were that much shorter, and the
        # rest came on top.
        factors = [factor for _, factor in done]
        ready = np.array([end for end, _ in done]) * overlap
        ends, arrived = self._gathered(factors, ready) if self.costs.gathered else ([], 0.0)
        if not self.costs.gathered:
            ends = list(range(1, len(factors) + 1))
            for factor, at in zip(factors, ready.tolist(), strict=True):
                arrived = max(arrived, at) + self.sending[factor]
        hidden = compute_s * overlap
        sent = [tuple(factors[i:j]) for i, j in itertools.pairwise([0, *ends])]
        return Stage(compute_s, compute_s - hidden + max(hidden, arrived), tuple(sent))

    def _gathered(self, factors: list[int], ready: Floats) -> tuple[list[int], float]:
        network = self.costs.network
        prefix = np.concatenate([[0.0], np.cumsum(self.sizes[factors])])
        return best_ends(
            len(factors),
            lambda j: np.asarray(network.time(ALL_GATHER, prefix[j] - prefix[:j]), float),
            np.concatenate([[0.0], ready]).__getitem__,
        )

    def bound(self) -> float:
        """Seconds before which no placement ends, where a byte costs no more in a larger message.

        With computation of M seconds on the busiest rank and communication of C, of which a share v
        of the computation hides some, a stage takes at least M and at least (1 - v) M + C; so also
        any weighted mean of both. M is at least the mean over the ranks. Of such a mean each factor
        has a part of its own, which is least for CT or for NCT: that is summed up, for several
        weights.
        """
        times, ranks = np.array(self.times), self.ranks
        if ranks == 1:
            return sum(self.times)
        sending = np.array(self.sending)
        if self.costs.gathered:
            total = float(self.sizes.sum())
            sending = self.sizes * (float(self.costs.network.time(ALL_GATHER, total)) / total)
        least = float(times.max())
        for weight in np.linspace(0.0, 1.0, 101):
            compute = weight + (1 - weight) * (1 - self.costs.overlap)
            shared = compute * times / ranks + (1 - weight) * sending
            least = max(least, float(np.minimum(compute * times, shared).sum()))
        return least


def _largest_first(dims: Sequence[int]) -> list[int]:
    return sorted(range(len(dims)), key=lambda factor: (-dims[factor], factor))


def _assigned(
    dims: Sequence[int], ranks: int, loads: Sequence[float], chosen: Sequence[int]
) -> Owners:
    """Each of the chosen factors, the largest first, to the rank with the least load."""
    among = set(chosen)
    owners: list[int | None] = [None] * len(dims)
    heap = [(0.0, rank) for rank in range(ranks)]
    for factor in _largest_first(dims):
        if factor in among:
            load, rank = heap[0]
            owners[factor] = rank
            heapq.heapreplace(heap, (load + loads[factor], rank))
    return tuple(owners)


def _check(dims: Sequence[int], ranks: int) -> None:
    if ranks < 1:
        raise ValueError(f"{ranks} ranks (expected >= 1)")
    if not dims or min(dims) < 1:
        raise ValueError(f"dimensions {list(dims)} (expected one or more, each >= 1)")
