"""When the buckets of a plan leave and arrive, by the model: what planners predict. Pure.

`simulate` says the same from activities and resources, and is slower; tests compare the two.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from aiacc.planning.cost import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from aiacc.planning.plan import DECOUPLED, Plan, cut
from aiacc.planning.problem import Floats, Problem, starts_of


def planned(
    problem: Problem, planner: str, ends: Sequence[int], lanes: int = 1, *, exact: bool = False
) -> Plan:
    """A plan of schedule ``all_reduce`` with the step time that the model gives it."""
    seconds = all_reduce_step(problem, ends, lanes)
    return Plan(
        planner=planner,
        buckets=cut(problem.tensors, ends),
        lanes=lanes,
        predicted_s=seconds,
        bound_s=seconds if exact else problem.trace.compute_s,
    )


def all_reduce_step(problem: Problem, ends: Sequence[int], lanes: int = 1) -> float:
    """Seconds of a step: its compute, or the arrival of the last bucket."""
    return max(problem.trace.compute_s, max(arrivals(problem, ends, lanes)))


def arrivals(problem: Problem, ends: Sequence[int], lanes: int = 1) -> list[float]:
    """When each bucket has been reduced, in seconds from the start of the step.

    Buckets leave in order, when the last gradient is ready and one of the lanes is free. Each of c
    that are under way advances as the model says for c lanes.
    """
    bytes_of = problem.prefix[list(ends)] - problem.prefix[starts_of(ends)]
    ready = problem.late[list(ends)].tolist()
    # Seconds that each takes while so many are under way.
    alone = [
        np.asarray(problem.cost.time(ALL_REDUCE, bytes_of, number), float).tolist()
        for number in range(1, lanes + 1)
    ]
    done = [math.nan] * len(ends)
    if lanes == 1:
        free = 0.0
        for number, seconds in enumerate(alone[0]):
            free = done[number] = max(free, ready[number]) + seconds
        return done
    now, waiting = 0.0, 0
    left: dict[int, float] = {}  # share of the work, by bucket under way
    while waiting < len(ends) or left:
        while waiting < len(ends) and len(left) < lanes and ready[waiting] <= now:
            left[waiting] = 1.0
            waiting += 1
        if not left:
            now = ready[waiting]
            continue
        pace = alone[len(left) - 1]
        ends_next = {number: now + share * pace[number] for number, share in left.items()}
        until = min(ends_next.values())
        if waiting < len(ends) and len(left) < lanes:
            until = min(until, ready[waiting])
        for number in list(left):
            if ends_next[number] <= until:
                done[number] = until
                del left[number]
            else:
                left[number] -= (until - now) / pace[number]
        now = until
    return done


def all_reduce_steps(
    problem: Problem, plans: Sequence[Sequence[int]], lanes: Sequence[int]
) -> Floats:
    """`all_reduce_step` of each of many plans, with its number of lanes; equal but for rounding."""
    rows, counts = np.arange(len(plans)), np.array([len(ends) for ends in plans])
    most = np.array(lanes)
    width = counts.max() + 1
    padded = [[*ends, *[len(problem)] * (width - len(ends))] for ends in plans]
    ends = np.array(padded)
    bytes_of = np.diff(problem.prefix[ends], prepend=0.0)
    # Behind the last bucket of each there is one that is never ready.
    ready = np.where(np.arange(ends.shape[1]) < counts[:, None], problem.late[ends], np.inf)
    numbers = range(1, max(lanes) + 1)
    alone = np.array([problem.cost.time(ALL_REDUCE, bytes_of, number) for number in numbers])
    now, waiting = np.zeros(len(plans)), np.zeros(len(plans), int)
    # By lane of each plan: whether a bucket is under way, which one, and the share that is left.
    busy = np.zeros((len(plans), len(numbers)), bool)
    bucket, left = np.zeros(busy.shape, int), np.zeros(busy.shape)
    while True:
        begin = np.flatnonzero((busy.sum(axis=1) < most) & (ready[rows, waiting] <= now))
        lane = busy[begin].argmin(axis=1)
        busy[begin, lane], bucket[begin, lane], left[begin, lane] = True, waiting[begin], 1.0
        waiting[begin] += 1
        under_way = busy.sum(axis=1)
        next_ready = np.where(under_way < most, ready[rows, waiting], np.inf)
        pace = alone[np.maximum(under_way, 1)[:, None] - 1, rows[:, None], bucket]
        done = np.where(busy, now[:, None] + left * pace, np.inf)
        until = np.minimum(done.min(axis=1), np.maximum(next_ready, now))
        over = np.isinf(until)
        if over.all():
            return np.maximum(problem.trace.compute_s, now)
        until[over] = now[over]
        left -= np.divide((until - now)[:, None], pace, out=np.zeros(pace.shape), where=pace > 0)
        busy &= done > until[:, None]
        now = until


def decoupled_step(problem: Problem, ends: Sequence[int]) -> float:
    """Seconds of a step whose all-gathers overlap the next forward pass."""
    return sum(decoupled_passes(problem, ends))


def decoupled_passes(problem: Problem, ends: Sequence[int]) -> tuple[float, float]:
    """Seconds of the backward pass and of the forward pass of such a step.

    The reduce-scatters follow each other in the backward pass; when the last of them is through,
    the all-gathers follow in the opposite order, and each layer of the forward pass waits for its
    own.
    """
    trace, prefix = problem.trace, problem.prefix
    buckets = list(zip(starts_of(ends), ends, strict=True))
    free = 0.0
    for start, end in buckets:
        scatter = float(problem.cost.time(REDUCE_SCATTER, prefix[end] - prefix[start]))
        free = max(free, float(problem.ready[end - 1]) - trace.forward_s) + scatter
    backward = max(trace.backward_s, free)
    arrived, forward = 0.0, trace.forward_s
    for start, end in reversed(buckets):
        arrived += float(problem.cost.time(ALL_GATHER, prefix[end] - prefix[start]))
        forward = max(forward, arrived + trace.forward_s - float(problem.need[start:end].min()))
    return backward, forward


def followed(problem: Problem, plan: Plan) -> Problem:
    """``problem`` with its tensors in the order of ``plan``, whose `ends` are of its buckets then.

    Raises:
        ValueError: The plan was made for other tensors, or in another order.
    """
    position = {tensor.name: i for i, tensor in enumerate(problem.trace.tensors)}
    order = [position.get(name, -1) for bucket in plan.buckets for name in bucket]
    last = -1
    for bucket, start, end in zip(plan.buckets, starts_of(plan.ends), plan.ends, strict=True):
        inside = all(one < other for one, other in pairwise([-1, *order[start:end]]))
        if not inside or order[end - 1] < last:
            raise ValueError(
                f"the plan's bucket that begins with {bucket[0]!r} is not in the order of the "
                "trace (expected a plan for this trace); plan again"
            )
        last = order[end - 1]
    if len(order) != len(problem):
        raise ValueError(
            f"the plan has {len(order)} tensors, the trace {len(problem)} (expected equal)"
        )
    return dataclasses.replace(problem, order=tuple(order))


def predict(problem: Problem, plan: Plan) -> float:
    """Seconds of a step with a plan that may have been made for another model or network.

    Raises:
        ValueError: As `followed` does.
    """
    problem = followed(problem, plan)
    if plan.schedule == DECOUPLED:
        return decoupled_step(problem, plan.ends)
    return all_reduce_step(problem, plan.ends, plan.lanes)


def in_turn(problem: Problem, plan: Plan) -> Plan:
    """``plan`` with its buckets in the order in which they are ready, and without its bound."""
    position = {tensor.name: i for i, tensor in enumerate(problem.trace.tensors)}
    buckets = tuple(sorted(plan.buckets, key=lambda bucket: position[bucket[-1]]))
    plan = dataclasses.replace(plan, buckets=buckets, bound_s=problem.trace.compute_s)
    return dataclasses.replace(plan, predicted_s=predict(problem, plan))
