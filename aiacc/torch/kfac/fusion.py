"""Which factors travel together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from aiacc.kfac.stage import StageCosts
from aiacc.kfac.step import INTERLEAVED, Bucket, Costs, plan_buckets
from aiacc.planning.cost import ALL_REDUCE, REDUCE_SCATTER
from aiacc.planning.trace import Tensor, Trace

#: How factors are fused: `by_plan`; `by_threshold`; in as few buckets as that, behind the passes.
OPTIMAL, THRESHOLD, BULK = "optimal", "threshold", "bulk"
FUSIONS = (OPTIMAL, THRESHOLD, BULK)
#: Of a bucket with `BULK`: Horovod's fusion buffer.
BULK_BYTES = 64 << 20

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


class Moment(NamedTuple):
    """When something that travels is ready, in seconds from the start of the forward pass."""

    name: str
    nbytes: int
    ready_s: float


def by_plan(
    factors: Sequence[Moment],
    gradients: Sequence[Moment],
    owners: dict[str, int | None],
    costs: StageCosts,
    ranks: int,
) -> tuple[list[Fused], list[tuple[str, ...]]]:
    """Buckets of factors, and of gradients, so that the last one arrives soonest.

    The exact plan of both queues (`aiacc.kfac.step`).

    Args:
        factors: All that are sent; of one kind.
        gradients: Those that may be merged, perhaps none.
        owners: Of factors that one rank alone needs.
        costs: Of operations.
        ranks: That take part.
    """
    moments = sorted([*factors, *gradients], key=lambda one: one.ready_s)
    end_s = moments[-1].ready_s
    tensors = [Tensor(one.name, one.nbytes, "float32", one.ready_s, 0.0) for one in moments]
    trace = Trace("K-FAC", tuple(tensors), 0.0, end_s, "measured")
    model = Costs(ranks, costs.inversion, costs.network, costs.network, costs.overlap)
    buckets = plan_buckets(trace, model, INTERLEAVED, owners)
    named = {one.name for one in factors}

    def is_factor(bucket: Bucket) -> bool:
        return bucket.tensors[0] in named

    return (
        [Fused(bucket.operation, bucket.tensors) for bucket in buckets if is_factor(bucket)],
        [bucket.tensors for bucket in buckets if not is_factor(bucket)],
    )
