"""What a collective operation costs, by its bytes. Pure.

Shi et al., "MG-WFBP", TPDS 2021 (arXiv 1912.09268): an all-reduce of M bytes takes a + b M, where
merging two saves one a. The same symbols are used here: `alpha` is the latency of a message,
`beta` seconds per byte on the link, `gamma` seconds per byte of reduction, N the number of ranks.

Every model answers for an operation, a number of bytes (the whole tensor's, on each rank) and a
number of lanes: how many such operations are under way at a time. Bytes may be a NumPy array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

ALL_REDUCE = "all_reduce"
REDUCE_SCATTER = "reduce_scatter"
ALL_GATHER = "all_gather"
BROADCAST = "broadcast"
OPERATIONS = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST)

#: What the halves of a ring all-reduce are worth of it.
_SHARE = {ALL_REDUCE: 1.0, REDUCE_SCATTER: 0.5, ALL_GATHER: 0.5, BROADCAST: 0.5}


class CostModel(Protocol):
    """Seconds of an operation; does not fall as bytes or lanes grow."""

    def time(self, operation: str, nbytes: Any, lanes: int = 1) -> Any:
        """Of one of ``lanes`` operations at a time, each of ``nbytes`` bytes."""
        ...


@dataclass(frozen=True)
class Contention:
    """How much longer an operation takes on the wire while others are under way.

    A flow is capped and the interface is shared: with k lanes, each gets min(1, capacity / k) of
    what one gets alone. ``capacity`` is how many flows the network carries at full speed; 4/3 is
    what ASC-WFBP measured (INFOCOM 2021): two all-reduces at a time cost 1.5 b each.
    """

    capacity: float = 1.0

    def __post_init__(self) -> None:
        if not self.capacity >= 1:
            raise ValueError(f"capacity {self.capacity} (expected >= 1)")

    def slowdown(self, lanes: int) -> float:
        """Of each of ``lanes`` operations."""
        return max(1.0, lanes / self.capacity)


@dataclass(frozen=True)
class Affine:
    """a + b M for an all-reduce, and half of it for a reduce-scatter or an all-gather.

    ``of`` has pairs (a, b) of operations for which that is not so.
    """

    a: float
    b: float
    of: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    contention: Contention = Contention()

    def __post_init__(self) -> None:
        for a, b in ((self.a, self.b), *self.of.values()):
            if not (a >= 0 and b >= 0 and math.isfinite(a) and math.isfinite(b)):
                raise ValueError(f"a = {a} s, b = {b} s/byte (expected finite, >= 0)")

    def pair(self, operation: str) -> tuple[float, float]:
        """A and b of an operation."""
        share = _share(operation)
        return self.of.get(operation, (self.a * share, self.b * share))

    def time(self, operation: str, nbytes: Any, lanes: int = 1) -> Any:
        """See CostModel."""
        a, b = self.pair(operation)
        return a + b * self.contention.slowdown(lanes) * nbytes


@dataclass(frozen=True)
class Table:
    """Measured times, by operation and lanes; lines between its points, and on beyond the last.

    No size takes longer than a larger one, to which it could be padded: what was slower, by noise
    or a switch of protocols, counts as that one. Times that fall as lanes grow are raised to those
    of fewer.
    """

    #: By operation and number of lanes: pairs of bytes and seconds, in ascending order of bytes.
    points: Mapping[tuple[str, int], Sequence[tuple[float, float]]]

    def __post_init__(self) -> None:
        if not any(operation == ALL_REDUCE for operation, _ in self.points):
            raise ValueError(f"points of {sorted(self.points)} (expected some of {ALL_REDUCE})")
        for (operation, lanes), row in self.points.items():
            _share(operation)
            if lanes < 1:
                raise ValueError(f"{operation}, {lanes} lanes (expected >= 1)")
            sizes = [size for size, _ in row]
            if len(row) < 2 or sizes != sorted(set(sizes)):
                raise ValueError(
                    f"{operation}, {lanes} lanes: sizes {sizes} (expected two or more, ascending)"
                )
            if not all(0 < seconds < math.inf for _, seconds in row):
                raise ValueError(f"{operation}, {lanes} lanes: times must be finite and positive")

    def time(self, operation: str, nbytes: Any, lanes: int = 1) -> Any:
        """See CostModel."""
        if lanes < 1:
            raise ValueError(f"lanes {lanes} (expected >= 1)")
        known = sorted(number for name, number in self.points if name == operation)
        if not known:
            return self.time(ALL_REDUCE, nbytes, lanes) * _share(operation)
        rows = [number for number in known if number <= lanes] or known[:1]
        result = np.max([self._of_row(operation, number, nbytes) for number in rows], axis=0)
        # Of more lanes than were measured: those share what the most had.
        result = result * max(1.0, lanes / known[-1])
        return result if np.ndim(nbytes) else float(result)

    def _of_row(self, operation: str, lanes: int, nbytes: Any) -> Any:
        sizes, times = np.array(self.points[operation, lanes], float).T
        times = np.minimum.accumulate(times[::-1])[::-1]
        slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
        beyond = np.maximum(0, np.asarray(nbytes, float) - sizes[-1])
        return np.interp(nbytes, sizes, times) + slope * beyond


#: Of an all-reduce: a and b by alpha, beta, gamma and N, as MG-WFBP's table of algorithms has them,
#: but where that is less than any all-reduce takes (Chan et al., "Collective communication: theory,
#: practice, and experience", 2007): log2 N rounds, rounded up, and 2 (N - 1) / N beta + (N - 1) / N
#: gamma for each byte. The table has beta + gamma for the double tree, which carries every byte up
#: and down.
ALGORITHMS = ("ring", "double_tree", "recursive_doubling", "halving_doubling")


@dataclass(frozen=True)
class Analytic:
    """The cost of an algorithm on a network without bottlenecks."""

    algorithm: str
    alpha: float
    beta: float
    gamma: float
    ranks: int
    contention: Contention = Contention()

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"algorithm {self.algorithm!r} (expected one of {', '.join(ALGORITHMS)})"
            )
        if self.ranks < 1:
            raise ValueError(f"ranks {self.ranks} (expected >= 1)")

    @property
    def affine(self) -> Affine:
        """The same as a + b M."""
        n, alpha, beta, gamma = self.ranks, self.alpha, self.beta, self.gamma
        if n == 1:
            return Affine(0.0, 0.0)
        steps = math.ceil(math.log2(n))
        a, b = {
            "ring": (2 * (n - 1) * alpha, (2 * beta + gamma) * (n - 1) / n),
            "double_tree": (2 * alpha * steps, 2 * beta + gamma),
            "recursive_doubling": (alpha * steps, (beta + gamma) * steps),
            "halving_doubling": (
                2 * alpha * steps,
                2 * beta + gamma - (2 * beta + gamma) / n,
            ),
        }[self.algorithm]
        return Affine(a, b, contention=self.contention)

    def time(self, operation: str, nbytes: Any, lanes: int = 1) -> Any:
        """See CostModel."""
        return self.affine.time(operation, nbytes, lanes)


@dataclass(frozen=True)
class Hierarchical:
    """Inside hosts of ``local`` ranks, then between them, where each rank carries its share."""

    inside: CostModel
    between: CostModel
    local: int

    def __post_init__(self) -> None:
        if self.local < 1:
            raise ValueError(f"local {self.local} (expected >= 1 rank on each host)")

    def time(self, operation: str, nbytes: Any, lanes: int = 1) -> Any:
        """See CostModel."""
        across = self.between.time(operation, nbytes / self.local, lanes)
        if self.local == 1:
            return across
        if operation == ALL_REDUCE:
            near = self.inside.time(REDUCE_SCATTER, nbytes, lanes)
            return near + across + self.inside.time(ALL_GATHER, nbytes, lanes)
        return self.inside.time(operation, nbytes, lanes) + across


def duration(seconds: float) -> str:
    """For people, with three digits."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def amount(nbytes: float) -> str:
    """For people."""
    for power, unit, least in ((30, "GiB", 1), (20, "MiB", 0.1), (10, "KiB", 1)):
        if (number := nbytes / (1 << power)) >= least:
            return f"{number:.2f} {unit}"
    return counted(int(nbytes), "byte")


def counted(number: int, what: str) -> str:
    """Of things, for people: ``1 rank``, ``2 ranks``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _share(operation: str) -> float:
    if operation not in _SHARE:
        raise ValueError(f"operation {operation!r} (expected one of {', '.join(OPERATIONS)})")
    return _SHARE[operation]
