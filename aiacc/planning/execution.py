"""How long a step takes as the core sends it: in rounds, in units, over lanes. Pure.

A planner has one bucket under way at a time, or k. The core does not wait for that: ranks agree in
rounds on whatever has come by then, small gradients are packed into units and large ones are cut
(csrc/planning/unit_planner.h), and each unit takes the lane that was given the least. So a plan of
many buckets ends much sooner than its planner thinks where messages take long. The model:

* A round lasts half as long as the shortest all-reduce, which has a round in it. The next one
  begins when it is over and something waits.
* A unit takes what an operation of its size takes alone, less that round. Part of it is on the
  wire, which the lanes share: what more bytes take while two operations are under way.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiacc.planning.cost import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, CostModel
from aiacc.planning.plan import DECOUPLED, Plan
from aiacc.planning.trace import Trace

#: As in csrc/planning/unit_planner.h: units that have a lane of their own, and the smallest parts.
_EXPRESS_BYTES = 32 << 10
_LEAST_PART_BYTES = 2 * _EXPRESS_BYTES
_SMALLEST = 1 << 10
#: Between these sizes the wire is measured.
_WIRE_BYTES = 4 << 20, 32 << 20


@dataclass(frozen=True)
class Sending:
    """The parameters of the core."""

    unit_bytes: int = 1 << 20
    lanes: int = 4
    #: Whether a bucket is one tensor, whose gradients are views of it.
    views: bool = False


@dataclass
class _Group:
    """What is submitted at a time."""

    ready_s: float
    sizes: Sequence[float]
    #: Whether it may be packed and cut; what may not is an operation for each size.
    is_cut: bool = True
    left: int = 0
    done_s: float = math.nan


@dataclass
class _Unit:
    nbytes: float
    groups: list[_Group] = field(default_factory=list)


def step_s(trace: Trace, plan: Plan | None, cost: CostModel, sending: Sending) -> float:
    """Seconds of a step.

    Args:
        trace: Of a step.
        plan: Of the same tensors; None: each gradient leaves by itself.
        cost: Of these ranks, as ``aiacc-plan probe`` has measured it.
        sending: By which parameters.
    """
    sizes = {tensor.name: tensor.bytes for tensor in trace.tensors}
    ready = {tensor.name: tensor.ready_s for tensor in trace.tensors}
    if plan is not None and plan.schedule == DECOUPLED:
        return _decoupled(trace, plan, cost, sending)
    buckets = [(tensor.name,) for tensor in trace.tensors] if plan is None else plan.buckets
    groups = []
    for bucket in buckets:
        own = [sizes[name] for name in bucket]
        groups.append(
            _Group(max(ready[name] for name in bucket), [sum(own)] if sending.views else own)
        )
    _send(groups, ALL_REDUCE, cost, sending)
    return max(trace.compute_s, *(group.done_s for group in groups))


def _decoupled(trace: Trace, plan: Plan, cost: CostModel, sending: Sending) -> float:
    """Seconds of a backward pass and the forward pass behind it."""
    tensors = {tensor.name: tensor for tensor in trace.tensors}
    scatters = []
    for bucket in plan.buckets:
        nbytes = sum(tensors[name].bytes for name in bucket)
        parts = parts_of(nbytes, sending.lanes)
        ready_s = max(tensors[name].ready_s for name in bucket) - trace.forward_s
        scatters.append(_Group(ready_s, [nbytes / parts] * parts, is_cut=False))
    _send(scatters, REDUCE_SCATTER, cost, sending)
    backward_s = max(trace.backward_s, *(group.done_s for group in scatters))
    needs = sorted(
        (min(tensors[name].need_s for name in bucket), group.sizes)
        for bucket, group in zip(plan.buckets, scatters, strict=True)
    )
    gathers = [_Group(0.0, sizes, is_cut=False) for _, sizes in needs]
    _send(gathers, ALL_GATHER, cost, sending)
    now = before = 0.0
    for (need_s, _), group in zip(needs, gathers, strict=True):
        now, before = max(now + need_s - before, group.done_s), need_s
    return backward_s + now + trace.forward_s - before


def parts_of(nbytes: int, lanes: int) -> int:
    """Into how many operations of equal bytes a bucket of the decoupled schedule is cut.

    A planner has one bucket under way at a time. So all lanes share a bucket: with a bucket each,
    what the forward pass needs first would wait for what it needs later.
    """
    return max(1, min(lanes, nbytes // _LEAST_PART_BYTES))


def units_of(sizes: Sequence[float], unit_bytes: int, lanes: int) -> list[list[tuple[int, float]]]:
    """The units that these tensors make: for each the tensors in it, by number, and their bytes.

    As ``plan_units`` does it, but that parts are equal.
    """
    units: list[list[tuple[int, float]]] = []
    filling, filled = -1, 0.0
    for number, size in enumerate(sizes):
        if 2 * size < unit_bytes:
            if filling < 0 or filled + size > unit_bytes:
                filling, filled = len(units), 0.0
                units.append([])
            units[filling].append((number, size))
            filled += size
            continue
        parts = math.ceil(size / unit_bytes)
        if parts > 1:
            even = math.ceil(parts / lanes) * lanes
            enough = size >= even * _LEAST_PART_BYTES
            parts = even if enough else max(parts, int(size // _LEAST_PART_BYTES))
        units += [[(number, size / parts)]] * parts
    return units


def _send(groups: Sequence[_Group], operation: str, cost: CostModel, sending: Sending) -> None:
    """Set when each group has arrived."""
    round_s = float(cost.time(ALL_REDUCE, _SMALLEST)) / 2
    low, high = (float(cost.time(operation, nbytes, 2)) for nbytes in _WIRE_BYTES)
    wire = (high - low) / 2 / (_WIRE_BYTES[1] - _WIRE_BYTES[0])
    lanes = [_Lane() for _ in range(sending.lanes + 1)]  # the last one is for the smallest units
    coming = [(group.ready_s, number) for number, group in enumerate(groups)]
    heapq.heapify(coming)
    waiting: list[_Group] = []
    agreed: list[_Group] = []
    now, round_ends = min(group.ready_s for group in groups), math.inf
    while True:
        while coming and coming[0][0] <= now:
            waiting.append(groups[heapq.heappop(coming)[1]])
        if round_ends <= now:
            for unit in _units(agreed, sending):
                lane = lanes[-1]
                if unit.nbytes > _EXPRESS_BYTES:
                    lane = min(lanes[:-1], key=lambda one: one.given)
                    lane.given += unit.nbytes
                lane.queue.append(unit)
            agreed, round_ends = [], math.inf
        if waiting and round_ends == math.inf:
            agreed, waiting, round_ends = waiting, [], now + round_s
        for lane in lanes:
            if not lane.busy and lane.queue:
                nbytes = lane.queue[0].nbytes
                on_wire = wire * nbytes
                alone = float(cost.time(operation, nbytes)) - round_s
                lane.busy, lane.before_s, lane.wire_s = True, max(0.0, alone - on_wire), on_wire
        sharing = sum(lane.busy and lane.before_s == 0 for lane in lanes)
        moments = [
            now + (lane.before_s if lane.before_s > 0 else lane.wire_s * sharing)
            for lane in lanes
            if lane.busy
        ]
        until = min([*moments, round_ends, coming[0][0] if coming else math.inf])
        if until == math.inf:
            return
        for lane in lanes:
            lane.go_on(now, until, sharing)
        now = until


@dataclass
class _Lane:
    queue: list[_Unit] = field(default_factory=list)
    given: float = 0.0
    busy: bool = False
    #: What is left of the first unit: seconds before the wire, and on it, if nobody shares it.
    before_s: float = 0.0
    wire_s: float = 0.0

    def go_on(self, now: float, until: float, sharing: int) -> None:
        """Let time pass; no farther than to the end of what the lane does."""
        if not self.busy:
            return
        if self.before_s > 0:
            left = self.before_s - (until - now)
            self.before_s = left if left > _EPSILON_S else 0.0
            return
        self.wire_s -= (until - now) / sharing
        if self.wire_s <= _EPSILON_S:
            self.busy = False
            for group in self.queue.pop(0).groups:
                group.left -= 1
                if group.left == 0:
                    group.done_s = until


_EPSILON_S = 1e-12


def _units(groups: Sequence[_Group], sending: Sending) -> list[_Unit]:
    """What a round has agreed on, in units."""
    units: list[_Unit] = []
    together = [(group, size) for group in groups if group.is_cut for size in group.sizes]
    sizes = [size for _, size in together]
    for slices in units_of(sizes, sending.unit_bytes, sending.lanes):
        members = [together[number][0] for number, _ in slices]
        units.append(_Unit(sum(nbytes for _, nbytes in slices), members))
    units += [_Unit(size, [g]) for g in groups if not g.is_cut for size in g.sizes]
    for unit in units:
        for group in unit.groups:
            group.left += 1
    return units
