"""The stage in which factors are inverted: when it ends, by who inverts what. Pure.

Ranks begin together. Each inverts what it owns, the largest first, then what everybody inverts. One
network carries the inverses that have an owner, in the order in which they are there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aiacc.kfac.costs import InversionCost, packed_bytes
from aiacc.kfac.shares import Shares
from aiacc.planning.cost import ALL_GATHER, BROADCAST, CostModel
from aiacc.planning.division.placement import Owners, largest_first
from aiacc.planning.optimal import best_ends
from aiacc.planning.problem import Floats


@dataclass(frozen=True)
class StageCosts:
    """Of the stage in which factors are inverted."""

    inversion: InversionCost
    network: CostModel
    #: Whether inverses that wait travel together, by the exact plan for all-gathers, which take as
    #: long as if every rank sent as much as the one that sends most; what one rank alone sends is a
    #: broadcast. Else each is a broadcast.
    gathered: bool = False
    #: Share of the computation that hides communication: 1 where neither slows down the other, 0
    #: where inverses are sent when all are computed.
    overlap: float = 1.0
    #: Whether eigenvectors and eigenvalues travel, d x d + d elements of a factor, which is twice
    #: the triangle of an inverse.
    square: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap {self.overlap} (expected 0 to 1)")


class Sent(NamedTuple):
    """Inverses that travel together."""

    factors: tuple[int, ...]
    #: Seconds from the start of the stage.
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Stage:
    """When a stage is over, in seconds from its start."""

    #: The last rank has inverted everything.
    compute_s: float
    #: Everybody has all inverses.
    finish_s: float
    #: In the order in which they leave.
    sent: tuple[Sent, ...] = ()


def stage(dims: Sequence[int], owners: Owners, ranks: int, costs: StageCosts) -> Stage:
    """With these owners of factors of these dimensions."""
    return StageModel(dims, ranks, costs).stage(owners)


class StageModel:
    """What all placements of some factors have in common.

    Attributes:
        times: Seconds of the inversion of each factor.
        order: Factors, the largest first.
    """

    def __init__(self, dims: Sequence[int], ranks: int, costs: StageCosts) -> None:
        """See `stage`."""
        check(dims, ranks)
        self._ranks, self._costs = ranks, costs
        self.order = largest_first(dims)
        self.times = [float(costs.inversion.seconds(dim)) for dim in dims]
        self._sizes = np.array([packed_bytes(dim) for dim in dims], float)
        if costs.square:
            self._sizes *= 2
        self._sending = [float(costs.network.time(BROADCAST, size)) for size in self._sizes]

    def stage(self, owners: Sequence[int | None]) -> Stage:
        """With these owners."""
        times, overlap = self.times, self._costs.overlap
        if self._ranks == 1:
            return Stage(sum(times), sum(times))
        everybody = sum(time for time, owner in zip(times, owners, strict=True) if owner is None)
        loads = [0.0] * self._ranks
        done: list[tuple[float, int]] = []
        for factor in self.order:
            owner = owners[factor]
            if owner is not None:
                loads[owner] += times[factor]
                done.append((loads[owner], factor))
        done.sort()
        compute_s = max(loads) + everybody
        if not done:
            return Stage(compute_s, compute_s)
        # Only a share of the computation hides anything: as if it were that much shorter, and the
        # rest came on top.
        factors = [factor for _, factor in done]
        ready = [end * overlap for end, _ in done]
        hidden, arrived = compute_s * overlap, 0.0
        sent = []
        for i, j, seconds in self._cut(factors, ready, owners):
            start = max(arrived, ready[j - 1])
            arrived = start + seconds
            clock = [_unhidden(at, overlap, compute_s) for at in (start, arrived)]
            sent.append(Sent(tuple(factors[i:j]), *clock))
        return Stage(compute_s, compute_s - hidden + max(hidden, arrived), tuple(sent))

    def _cut(
        self, factors: list[int], ready: list[float], owners: Sequence[int | None]
    ) -> list[tuple[int, int, float]]:
        """Which of the factors travel together, and for how long."""
        if not self._costs.gathered:
            return [(i, i + 1, self._sending[factor]) for i, factor in enumerate(factors)]
        prefix = np.concatenate([[0.0], np.cumsum(self._sizes[factors])])
        mine = [owners[factor] for factor in factors]
        shares = Shares(mine, [float(self._sizes[factor]) for factor in factors])
        # From where on all have the owner of the one before j.
        same = [0]
        for number in range(1, len(mine)):
            same.append(same[-1] if mine[number] == mine[number - 1] else number)

        def costs_to(j: int) -> Floats:
            sizes = prefix[j] - prefix[:j]
            whole = self._ranks * shares.most(j)
            gathered = np.asarray(self._costs.network.time(ALL_GATHER, whole), float)
            sent = np.asarray(self._costs.network.time(BROADCAST, sizes), float)
            return np.where(np.arange(j) >= same[j - 1], sent, gathered)

        ends, _ = best_ends(len(factors), costs_to, [0.0, *ready].__getitem__)
        return [(i, j, float(costs_to(j)[i])) for i, j in itertools.pairwise([0, *ends])]

    def bound(self) -> float:
        """Seconds before which no placement ends, where a byte costs no more in a larger message.

        With computation of M seconds on the busiest rank and communication of C, of which a share v
        of the computation hides some, a stage takes at least M and at least (1 - v) M + C; so also
        any weighted mean of both. M is at least the mean over the ranks. Of such a mean each factor
        has a part of its own, which is least for CT or for NCT: that is summed up, for several
        weights.
        """
        times, ranks = np.array(self.times), self._ranks
        if ranks == 1:
            return sum(self.times)
        sending = np.array(self._sending)
        if self._costs.gathered:
            total = float(self._sizes.sum())
            ways = (self._costs.network.time(way, total) for way in (ALL_GATHER, BROADCAST))
            sending = self._sizes * (min(map(float, ways)) / total)
        least = float(times.max())
        for weight in np.linspace(0.0, 1.0, 101):
            compute = weight + (1 - weight) * (1 - self._costs.overlap)
            shared = compute * times / ranks + (1 - weight) * sending
            least = max(least, float(np.minimum(compute * times, shared).sum()))
        return least


def check(dims: Sequence[int], ranks: int) -> None:
    """ValueError unless there is something to place, and somewhere."""
    if ranks < 1:
        raise ValueError(f"{ranks} ranks (expected >= 1)")
    if not dims or min(dims) < 1:
        raise ValueError(f"dimensions {list(dims)} (expected one or more, each >= 1)")


def _unhidden(at: float, overlap: float, compute_s: float) -> float:
    """When a moment is for which the computation was as if it took ``overlap`` of its time."""
    if at < overlap * compute_s:
        return at / overlap
    return at + (1 - overlap) * compute_s
