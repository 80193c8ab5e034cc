"""How long a step takes as the core sends it: in rounds, in units, over lanes. Pure.

A planner has one bucket under way at a time, or k. The core does not wait for that: ranks agree in
rounds on whatever has come by then, small gradients are packed into units and large ones are cut
(csrc/planning/unit_planner.h), and each unit takes the lane that was given the least. So a plan of
many buckets ends much sooner than its planner thinks where messages take long. The model:

* A round lasts half as long as the shortest all-reduce, which has a round in it. The next one
  begins when it is over and something waits.
* A unit takes what an operation of its size takes alone, less that round, in the steps of a ring.
  In each it waits, then its bytes are on the wire for what more bytes take while two operations are
  under way. The wire has one step at a time, in the order in which they come to it, so that lanes
  fill each other's waits.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
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
#: More steps of a ring than these change next to nothing, and take their time here.
_MOST_STEPS = 16


@dataclass(frozen=True)
class Sending:
    """The parameters of the core."""

    unit_bytes: int = 1 << 20
    lanes: int = 4
    #: Whether a bucket is one tensor, whose gradients are views of it.
    views: bool = False
    #: In the ring, or rings of lanes.
    ranks: int = 4


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
    if plan is not None and plan.schedule == DECOUPLED:
        return _decoupled(trace, plan, cost, sending)
    return max(trace.compute_s, *arrivals_s(trace, plan, cost, sending))


def arrivals_s(trace: Trace, plan: Plan | None, cost: CostModel, sending: Sending) -> list[float]:
    """When each bucket has been reduced, in seconds from the start of the step.

    Arguments are those of `step_s`; not for a decoupled plan.
    """
    sizes = {tensor.name: tensor.bytes for tensor in trace.tensors}
    ready = {tensor.name: tensor.ready_s for tensor in trace.tensors}
    buckets = [(tensor.name,) for tensor in trace.tensors] if plan is None else plan.buckets
    groups = []
    for bucket in buckets:
        own = [sizes[name] for name in bucket]
        groups.append(
            _Group(max(ready[name] for name in bucket), [sum(own)] if sending.views else own)
        )
    _send(groups, ALL_REDUCE, cost, sending)
    return [group.done_s for group in groups]


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
    wire = _Wire(operation, cost, sending)
    coming = deque(sorted(groups, key=lambda group: group.ready_s))
    waiting: list[_Group] = []
    agreed: list[_Group] = []
    round_ends = math.inf
    while coming or waiting or agreed or wire.busy:
        now = min(round_ends, wire.next_s, coming[0].ready_s if coming else math.inf)
        wire.go_on(now)
        while coming and coming[0].ready_s <= now:
            waiting.append(coming.popleft())
        if round_ends <= now:
            for unit in _units(agreed, sending):
                wire.give(unit, now)
            agreed, round_ends = [], math.inf
        if waiting and round_ends == math.inf:
            agreed, waiting, round_ends = waiting, [], now + wire.round_s


@dataclass
class _Lane:
    queue: deque[_Unit] = field(default_factory=deque)
    given: float = 0.0
    #: Of the first unit: the steps that are left, and seconds of one before the wire and on it.
    steps: int = 0
    wait_s: float = 0.0
    wire_s: float = 0.0


class _Wire:
    """What lanes share."""

    def __init__(self, operation: str, cost: CostModel, sending: Sending) -> None:
        self.round_s = float(cost.time(ALL_REDUCE, _SMALLEST)) / 2
        self._operation, self._cost = operation, cost
        low, high = (float(cost.time(operation, nbytes, 2)) for nbytes in _WIRE_BYTES)
        self._byte_s = (high - low) / 2 / (_WIRE_BYTES[1] - _WIRE_BYTES[0])
        ring = (sending.ranks - 1) * (2 if operation == ALL_REDUCE else 1)
        self._steps = max(1, min(ring, _MOST_STEPS))
        self._lanes = [_Lane() for _ in range(sending.lanes + 1)]  # the last for smallest units
        #: What ends next: when, and with a number for those at a time, in which lane; a wait or
        #: the step that is on the wire.
        self._ends: list[tuple[float, int, _Lane, bool]] = []
        self._count = itertools.count()
        #: Lanes whose steps have come to the wire; the first is on it.
        self._line: deque[_Lane] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._ends)

    @property
    def next_s(self) -> float:
        """When something ends."""
        return self._ends[0][0] if self._ends else math.inf

    def give(self, unit: _Unit, now: float) -> None:
        """Let the lane that was given the least have it."""
        lane = self._lanes[-1]
        if unit.nbytes > _EXPRESS_BYTES:
            lane = min(self._lanes[:-1], key=lambda one: one.given)
            lane.given += unit.nbytes
        lane.queue.append(unit)
        if len(lane.queue) == 1:
            self._begin(lane, now)

    def go_on(self, now: float) -> None:
        """Let time pass; no farther than `next_s`."""
        while self._ends and self._ends[0][0] <= now:
            _, _, lane, waited = heapq.heappop(self._ends)
            if waited:
                self._line.append(lane)
                if len(self._line) == 1:
                    self._end(now + lane.wire_s, lane, waited=False)
                continue
            self._line.popleft()
            if self._line:
                self._end(now + self._line[0].wire_s, self._line[0], waited=False)
            lane.steps -= 1
            if lane.steps > 0:
                self._end(now + lane.wait_s, lane, waited=True)
                continue
            for group in lane.queue.popleft().groups:
                group.left -= 1
                if group.left == 0:
                    group.done_s = now
            if lane.queue:
                self._begin(lane, now)

    def _begin(self, lane: _Lane, now: float) -> None:
        nbytes = lane.queue[0].nbytes
        on_wire_s = self._byte_s * nbytes
        alone_s = float(self._cost.time(self._operation, nbytes)) - self.round_s
        lane.steps = self._steps
        lane.wait_s = max(0.0, alone_s - on_wire_s) / self._steps
        lane.wire_s = on_wire_s / self._steps
        self._end(now + lane.wait_s, lane, waited=True)

    def _end(self, when_s: float, lane: _Lane, *, waited: bool) -> None:
        heapq.heappush(self._ends, (when_s, next(self._count), lane, waited))


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
