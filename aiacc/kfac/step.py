"""A step of K-FAC: which factors and gradients travel together, and how long all of it takes. Pure.

The step has two parts. In the first, passes and factors are computed while one network carries
factors and gradients; behind it is the `stage` in which factors are inverted.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aiacc.kfac.costs import InversionCost
from aiacc.kfac.interleaved import Queue, interleaved
from aiacc.kfac.modelled import is_factor
from aiacc.kfac.shares import Shares
from aiacc.kfac.stage import Stage
from aiacc.planning import planners
from aiacc.planning.cost import ALL_REDUCE, REDUCE_SCATTER, CostModel
from aiacc.planning.problem import Floats
from aiacc.planning.simulate import Activity, Timeline, simulate
from aiacc.planning.trace import Tensor, Trace

NETWORK, COMPUTE = "network", "compute"
#: Of Horovod's fusion buffer, in which the published variants merge what nothing else merges.
HOROVOD = "threshold(64)"
#: Bytes of a reduction to owners whose parts have the same size, by those of its factors, at most.
MOST_PADDED = 4
#: Places of a queue where `INTERLEAVED` may cut it: between all neighbours, or so many that are
#: evenly spread. The plan takes O(n^3), and thousands of factors would wait for it for an hour.
MOST_CUTS = 512
#: Those of `planners` for factors, and `INTERLEAVED`: exactly, together with the gradients.
PER_TENSOR = "per_tensor"
INTERLEAVED = "interleaved"

#: Owner of each factor, by its name in the trace; None: everybody needs it.
OwnerOf = Mapping[str, int | None]


@dataclass(frozen=True)
class Costs:
    """What a cluster asks for."""

    ranks: int
    inversion: InversionCost
    #: Of operations on buckets.
    fused: CostModel
    #: Of operations on one tensor each, many of them issued at a time.
    single: CostModel
    #: Share of the computation that hides communication: 1 where neither slows down the other.
    overlap: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap {self.overlap} (expected 0 to 1)")


@dataclass(frozen=True)
class Bucket:
    """What travels together."""

    #: `ALL_REDUCE`, or `REDUCE_SCATTER` of factors, each to its owner.
    operation: str
    tensors: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Step:
    """Seconds of a step and of its parts."""

    #: Both passes, and all factors.
    compute_s: float
    #: Of gradients and factors, as far as nothing hides it.
    exposed_s: float
    stage: Stage

    @property
    def seconds(self) -> float:
        """Of all."""
        return self.compute_s + self.exposed_s + self.stage.finish_s


def step(trace: Trace, buckets: Sequence[Bucket], stage: Stage, overlap: float) -> Step:
    """With buckets that were planned for the trace, and the stage behind them."""
    hidden = hiding(trace, overlap)
    exposed_s = simulated(hidden, buckets).end_s - hidden.compute_s
    # Rounding, where all is hidden.
    return Step(trace.compute_s, max(0.0, exposed_s), stage)


def hiding(trace: Trace, share: float) -> Trace:
    """As if so little of the computation went on beside communication, and the rest by itself.

    Planned and simulated with it, a schedule shows what is exposed where the two slow each other
    down. No order changes.
    """
    tensors = [
        dataclasses.replace(t, ready_s=t.ready_s * share, need_s=t.need_s * share)
        for t in trace.tensors
    ]
    return dataclasses.replace(
        trace,
        tensors=tuple(tensors),
        forward_s=trace.forward_s * share,
        backward_s=trace.backward_s * share,
    )


def simulated(trace: Trace, buckets: Sequence[Bucket]) -> Timeline:
    """The first part of a step. Buckets leave in their order."""
    activities, clock = [], 0.0
    for tensor in trace.tensors:
        seconds = max(0.0, tensor.ready_s - clock)
        activities.append(Activity(f"{COMPUTE} {tensor.name}", COMPUTE, (seconds,)))
        clock = max(clock, tensor.ready_s)
    activities.append(Activity(f"{COMPUTE} end", COMPUTE, (max(0.0, trace.compute_s - clock),)))
    for number, bucket in enumerate(buckets):
        after = tuple(f"{COMPUTE} {name}" for name in bucket.tensors)
        name = f"{bucket.operation} {number}"
        activities.append(Activity(name, NETWORK, (bucket.seconds,), after))
    return simulate(activities)


def plan_buckets(
    trace: Trace, costs: Costs, fusion: str, owners: OwnerOf | None = None
) -> list[Bucket]:
    """Buckets of factors and gradients, in the order in which they leave.

    Args:
        trace: Of the step; what hides communication is taken from it as it is (see `hiding`).
        costs: Of operations.
        fusion: A planner for factors, A and G apart, by its name in `planners`, while gradients
            leave in `HOROVOD`'s buckets; or `INTERLEAVED`.
        owners: With `INTERLEAVED`: factors that only their owners need. Buckets of such are
            reduced to these where that is quicker. Without: everybody gets all factors.
    """
    factors = [tensor for tensor in trace.tensors if is_factor(tensor.name)]
    gradients = [tensor for tensor in trace.tensors if not is_factor(tensor.name)]
    if fusion == INTERLEAVED:
        return _interleaved(factors, gradients, costs, owners or {})
    ready = {tensor.name: tensor.ready_s for tensor in trace.tensors}
    buckets = _planned(gradients, trace, costs.fused, HOROVOD)
    # The published code has one queue in the forward pass and one in the backward pass.
    split = len(factors) // 2
    cost = costs.single if fusion == PER_TENSOR else costs.fused
    for part in (factors[:split], factors[split:]):
        buckets += _planned(part, trace, cost, fusion)
    return sorted(buckets, key=lambda bucket: max(ready[name] for name in bucket.tensors))


def bulk_buckets(trace: Trace, costs: Costs) -> list[Bucket]:
    """All factors behind the passes, in `HOROVOD`'s buckets."""
    factors = [tensor for tensor in trace.tensors if is_factor(tensor.name)]
    return _planned(factors, trace, costs.fused, HOROVOD)


def _planned(tensors: list[Tensor], trace: Trace, cost: CostModel, planner: str) -> list[Bucket]:
    if not tensors:
        return []
    plan = planners.plan(planner, dataclasses.replace(trace, tensors=tuple(tensors)), cost)
    sizes = {tensor.name: tensor.bytes for tensor in tensors}
    return [
        Bucket(ALL_REDUCE, names, float(cost.time(ALL_REDUCE, sum(map(sizes.__getitem__, names)))))
        for names in plan.buckets
    ]


def _interleaved(
    factors: list[Tensor], gradients: list[Tensor], costs: Costs, owners: OwnerOf
) -> list[Bucket]:
    """The exact plan of factors and of the gradients between two of them, which stay together.

    Of more than `MOST_CUTS` it is the best plan with cuts at so many places.
    """
    groups = _between(factors, gradients)
    prefixes = [
        np.concatenate([[0.0], np.cumsum([float(t.bytes) for t in factors])]),
        np.concatenate([[0.0], np.cumsum([float(sum(t.bytes for t in g)) for g in groups])]),
    ]
    # How many of the factors before each one everybody needs.
    needed = np.array([owners.get(tensor.name) is None for tensor in factors], bool)
    common = np.concatenate([[0], np.cumsum(needed)])
    shares = Shares([owners.get(t.name) for t in factors], [float(t.bytes) for t in factors])

    def to_owners(j: int) -> Floats:
        """Seconds of buckets that end behind j factors; infinite if everybody needs one of them.

        A reduce-scatter gives every rank a part of the same size: it takes as long as if all owned
        as much as the one that owns most, and is none if such parts would take too much memory.
        """
        padded = costs.ranks * shares.most(j)
        possible = padded <= MOST_PADDED * (prefixes[0][j] - prefixes[0][:j])
        possible &= common[:j] == common[j]
        seconds = np.asarray(costs.fused.time(REDUCE_SCATTER, padded), float)
        return np.where(possible, seconds, np.inf)

    def costs_to(number: int, j: int) -> Floats:
        sizes = prefixes[number][j] - prefixes[number][:j]
        everybody = np.asarray(costs.fused.time(ALL_REDUCE, sizes), float)
        return everybody if number == 1 else np.minimum(everybody, to_owners(j))

    ready = [[t.ready_s for t in factors], [g[-1].ready_s for g in groups]]
    cuts = [_cuts(len(one)) for one in ready]

    def queue(number: int) -> Queue:
        at = cuts[number]
        return Queue(
            np.array([ready[number][end - 1] for end in at[1:]]),
            lambda j: costs_to(number, at[j])[at[:j]],
        )

    found, _ = interleaved(queue(0), queue(1))
    buckets = []
    for number, start, end in found:
        i, j = cuts[number][start], cuts[number][end]
        seconds = float(costs_to(number, j)[i])
        owned = number == 0 and float(to_owners(j)[i]) <= seconds
        tensors = factors[i:j] if number == 0 else [t for group in groups[i:j] for t in group]
        operation = REDUCE_SCATTER if owned else ALL_REDUCE
        buckets.append(Bucket(operation, tuple(t.name for t in tensors), seconds))
    return buckets


def _cuts(count: int) -> list[int]:
    """Where buckets of so many tensors may begin and end."""
    return [*range(0, count, -(-count // MOST_CUTS) or 1), count] if count else [0]


def _between(factors: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[list[Tensor]]:
    """Gradients by how many of the factors are ready before them."""
    times = [factor.ready_s for factor in factors]
    return [
        list(group)
        for _, group in itertools.groupby(gradients, lambda t: bisect.bisect_left(times, t.ready_s))
    ]
