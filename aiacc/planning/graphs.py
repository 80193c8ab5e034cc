"""Training steps as activities for the simulator. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aiacc.planning.cost import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, CostModel
from aiacc.planning.plan import DECOUPLED, Plan
from aiacc.planning.simulate import Activity, Timeline, simulate
from aiacc.planning.trace import Trace, TraceError

NETWORK = "network"


def simulated(ranks: Sequence[Trace], plan: Plan, cost: CostModel) -> Timeline:
    """One step of all ranks, or of one that stands for all.

    With schedule ``decoupled`` it is a backward pass and the forward pass behind it, and the clock
    starts with the backward pass.

    Args:
        ranks: What each rank computes; they must have the same tensors. A bucket leaves when all
            ranks have it.
        plan: Of the same tensors.
        cost: Of the network.

    Raises:
        TraceError: Ranks have different tensors, or none are given.
        ValueError: The plan is not of their tensors.
    """
    if not ranks:
        raise TraceError("no ranks (expected one trace or more)")
    sizes = {tensor.name: tensor.bytes for tensor in ranks[0].tensors}
    for number, trace in enumerate(ranks):
        if {tensor.name: tensor.bytes for tensor in trace.tensors} != sizes:
            raise TraceError(f"rank {number} has other tensors than rank 0 (expected the same)")
    planned = {name for bucket in plan.buckets for name in bucket}
    if differing := sorted(planned ^ sizes.keys()):
        where = "plan" if differing[0] in planned else "traces"
        raise ValueError(
            f"tensor {differing[0]!r} is in the {where} only (expected a plan for these traces); "
            "plan again"
        )
    build = _decoupled if plan.schedule == DECOUPLED else _all_reduce
    return simulate(build(ranks, plan, cost), {NETWORK: plan.lanes})


def step_s(ranks: Sequence[Trace], plan: Plan, cost: CostModel) -> float:
    """Seconds of such a step."""
    return simulated(ranks, plan, cost).end_s


def _all_reduce(ranks: Sequence[Trace], plan: Plan, cost: CostModel) -> list[Activity]:
    activities: list[Activity] = []
    for rank, trace in enumerate(ranks):
        activities += _chain(
            rank,
            "backward",
            [("forward", trace.forward_s)]
            + [(tensor.name, tensor.ready_s) for tensor in trace.tensors]
            + [("end", trace.compute_s)],
        )
    for number, nbytes in enumerate(_bucket_bytes(ranks, plan)):
        activities.append(_sent(ALL_REDUCE, number, nbytes, ranks, plan, cost))
    return activities


def _decoupled(ranks: Sequence[Trace], plan: Plan, cost: CostModel) -> list[Activity]:
    activities: list[Activity] = []
    for rank, trace in enumerate(ranks):
        times = [(tensor.name, tensor.ready_s - trace.forward_s) for tensor in trace.tensors]
        activities += _chain(rank, "backward", [*times, ("end", trace.backward_s)])
    last = len(plan.buckets) - 1
    bytes_of = _bucket_bytes(ranks, plan)
    for number, nbytes in enumerate(bytes_of):
        activities.append(_sent(REDUCE_SCATTER, number, nbytes, ranks, plan, cost))
    # The step of the optimizer is between: no parameter is gathered before all gradients are there.
    barrier = (f"{REDUCE_SCATTER} {last}", *(f"rank {r} backward end" for r in range(len(ranks))))
    for number in range(last, -1, -1):
        seconds = _seconds(cost, ALL_GATHER, bytes_of[number], plan)
        activities.append(Activity(f"{ALL_GATHER} {number}", NETWORK, seconds, barrier))
    bucket_of = {name: number for number, bucket in enumerate(plan.buckets) for name in bucket}
    for rank, trace in enumerate(ranks):
        # A bucket is awaited at the first use of any of its tensors.
        first: dict[int, float] = {}
        for tensor in trace.tensors:
            number = bucket_of[tensor.name]
            first[number] = min(first.get(number, trace.forward_s), tensor.need_s)
        previous, clock, waits = f"rank {rank} backward end", 0.0, barrier
        for number, at in [
            *sorted(first.items(), key=lambda item: (item[1], -item[0])),
            (-1, trace.forward_s),
        ]:
            name = f"rank {rank} forward until {'the end' if number < 0 else f'bucket {number}'}"
            activities.append(Activity(name, f"rank {rank}", (at - clock,), (previous, *waits)))
            previous, clock = name, at
            waits = () if number < 0 else (f"{ALL_GATHER} {number}",)
    return activities


def _chain(rank: int, what: str, until: Sequence[tuple[str, float]]) -> list[Activity]:
    """Computation that reaches each point at its time, if nothing keeps it."""
    activities, clock = [], 0.0
    for name, at in until:
        activities.append(
            Activity(f"rank {rank} {what} {name}", f"rank {rank}", (max(0.0, at - clock),))
        )
        clock = max(clock, at)
    return activities


def _bucket_bytes(ranks: Sequence[Trace], plan: Plan) -> list[int]:
    sizes = {tensor.name: tensor.bytes for tensor in ranks[0].tensors}
    return [sum(sizes[name] for name in bucket) for bucket in plan.buckets]


def _sent(
    operation: str,
    number: int,
    nbytes: int,
    ranks: Sequence[Trace],
    plan: Plan,
    cost: CostModel,
) -> Activity:
    return Activity(
        f"{operation} {number}",
        NETWORK,
        _seconds(cost, operation, nbytes, plan),
        tuple(
            f"rank {rank} backward {name}"
            for rank in range(len(ranks))
            for name in plan.buckets[number]
        ),
    )


def _seconds(cost: CostModel, operation: str, nbytes: int, plan: Plan) -> tuple[float, ...]:
    return tuple(float(cost.time(operation, nbytes, number)) for number in range(1, plan.lanes + 1))
