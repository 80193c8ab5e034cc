"""Which factors travel together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from aiacc.planning.cost import ALL_REDUCE, REDUCE_SCATTER

#: Of a bucket, while nothing is known of when factors are ready. Several leave in a pass, and each
#: is worth its start on networks from 100 Mbit/s to 10 Gbit/s.
THRESHOLD_BYTES = 4 << 20


class Planned(NamedTuple):
    """A factor as it is planned with."""

    name: str
    #: Packed, with its weight.
    nbytes: int
    #: Rank that alone needs it; None: all do.
    owner: int | None
    #: Factors of different kinds (pass, dtype, device) have no bucket in common.
    kind: str


class Fused(NamedTuple):
    """A bucket."""

    operation: str
    names: tuple[str, ...]


def by_threshold(
    factors: Iterable[Planned], ranks: int, most: int = THRESHOLD_BYTES
) -> list[Fused]:
    """Neighbours that all need, or that have owners, up to ``most`` bytes."""
    buckets = []
    for _, group in groupby(factors, lambda one: (one.owner is None, one.kind)):
        run: list[Planned] = []
        for one in group:
            if run and sum(other.nbytes for other in run) + one.nbytes > most:
                buckets.append(fused(run, ranks))
                run = []
            run.append(one)
        buckets.append(fused(run, ranks))
    return buckets


def fused(factors: Sequence[Planned], ranks: int) -> Fused:
    """A bucket of these, by the operation that moves fewer bytes.

    A reduce-scatter gives every rank a part of the same size, so the one that owns most decides. It
    moves (N - 1) / N of its tensor, an all-reduce twice that of a smaller one.
    """
    operation = ALL_REDUCE
    if all(one.owner is not None for one in factors):
        loads = [0] * ranks
        for one in factors:
            assert one.owner is not None
            loads[one.owner] += one.nbytes
        if max(loads) * ranks < 2 * sum(loads):
            operation = REDUCE_SCATTER
    return Fused(operation, tuple(one.name for one in factors))
