"""How long a step takes as the core sends it: in rounds, in units, over lanes. Pure.

A planner has one bucket under way at a time, or k. The core does not wait for that: ranks agree in
rounds on whatever has come by then, small gradients are packed into units and large ones are cut
(csrc/planning/unit_planner.h), and each unit takes the lane that was given the least. So a plan of
many buckets ends much sooner than its planner thinks where messages take long. The model:

* A round is a message to a rank that hears all, and one back, each half as long as the shortest
  all-reduce, which has a round in it. The next one begins when it is over and something waits.
* A unit takes what an operation of its size takes alone, less a round, in the steps of a ring. A
  step sends on what the one before has brought, slice by slice, as it comes.
* What a round finds is packed, so small differences make other units. A step takes the mean over
  rounds that are somewhat shorter and longer.
* The wire is what more bytes take while two operations are under way, unless large ones have taken
  less for each of theirs. Lanes take turns on it, with a slice each, so that they fill each other's
  waits, and the messages of a round wait their turn.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from aiacc.planning.cost import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, CostModel
from aiacc.planning.plan import DECOUPLED, Plan
from aiacc.planning.trace import Trace

#: As in csrc/planning/unit_planner.h: units that have a lane of their own, and the smallest parts.
_EXPRESS_BYTES = 32 << 10
_LEAST_PART_BYTES = 2 * _EXPRESS_BYTES
_SMALLEST = 1 << 10
#: Between these sizes the wire is measured.
_WIRE_BYTES = 4 << 20, 32 << 20
#: About what TCP hands to an interface at a time of each connection.
_SLICE_S = 1e-3
#: By how much rounds differ from the shortest all-reduce's.
_ROUNDS = tuple(0.8 + 0.05 * number for number in range(9))
#: More of a ring's steps, and of a step's slices, change next to nothing and take their time here.
_MOST_STEPS = _MOST_SLICES = 16


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
    return fmean(_one_step_s(trace, plan, cost, sending, one) for one in _ROUNDS)


def _one_step_s(
    trace: Trace, plan: Plan | None, cost: CostModel, sending: Sending, rounds: float
) -> float:
    if plan is not None and plan.schedule == DECOUPLED:
        return _decoupled(trace, plan, cost, sending, rounds)
    return max(trace.compute_s, *arrivals_s(trace, plan, cost, sending, rounds))


def arrivals_s(
    trace: Trace, plan: Plan | None, cost: CostModel, sending: Sending, rounds: float = 1.0
) -> list[float]:
    """When each bucket has been reduced, in seconds from the start of the step.

    Arguments are those of `step_s`, not for a decoupled plan, and ``rounds``, by how much they are
    longer than that of the shortest all-reduce.
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
    _send(groups, _Wire(ALL_REDUCE, cost, sending, rounds), sending)
    return [group.done_s for group in groups]


def _decoupled(trace: Trace, plan: Plan, cost: CostModel, sending: Sending, rounds: float) -> float:
    """Seconds of a backward pass and the forward pass behind it."""
    tensors = {tensor.name: tensor for tensor in trace.tensors}
    scatters = []
    for bucket in plan.buckets:
        nbytes = sum(tensors[name].bytes for name in bucket)
        parts = parts_of(nbytes, sending.lanes)
        ready_s = max(tensors[name].ready_s for name in bucket) - trace.forward_s
        scatters.append(_Group(ready_s, [nbytes / parts] * parts, is_cut=False))
    _send(scatters, _Wire(REDUCE_SCATTER, cost, sending, rounds), sending)
    backward_s = max(trace.backward_s, *(group.done_s for group in scatters))
    needs = sorted(
        (min(tensors[name].need_s for name in bucket), group.sizes)
        for bucket, group in zip(plan.buckets, scatters, strict=True)
    )
    gathers = [_Group(0.0, sizes, is_cut=False) for _, sizes in needs]
    _send(gathers, _Wire(ALL_GATHER, cost, sending, rounds), sending)
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


def _send(groups: Sequence[_Group], wire: _Wire, sending: Sending) -> None:
    """Set when each group has arrived."""
    coming = deque(sorted(groups, key=lambda group: group.ready_s))
    waiting: list[_Group] = []
    agreed: list[_Group] = []
    while coming or waiting or wire.busy:
        now = min(wire.next_s, coming[0].ready_s if coming else math.inf)
        if wire.go_on(now):
            for unit in _units(agreed, sending):
                wire.give(unit, now)
            agreed = []
        while coming and coming[0].ready_s <= now:
            waiting.append(coming.popleft())
        if waiting and not agreed:
            agreed, waiting = waiting, []
            wire.agree(now)


@dataclass
class _Lane:
    queue: deque[_Unit] = field(default_factory=deque)
    given: float = 0.0
    #: Of the first unit: seconds of a slice on the wire, and from there to the next rank's.
    slice_s: float = 0.0
    hop_s: float = 0.0
    #: Its slices that have not arrived at the last rank.
    left: int = 0
    #: Slices that wait for the wire: for each the steps behind this one.
    ready: deque[int] = field(default_factory=deque)


class _Wire:
    """What lanes share."""

    def __init__(
        self, operation: str, cost: CostModel, sending: Sending, rounds: float = 1.0
    ) -> None:
        self._round_s = float(cost.time(ALL_REDUCE, _SMALLEST)) / 2
        self._operation, self._cost = operation, cost
        self._byte_s = _byte_s(operation, cost)
        ring = (sending.ranks - 1) * (2 if operation == ALL_REDUCE else 1)
        self._steps = max(1, min(ring, _MOST_STEPS))
        self._lanes = [_Lane() for _ in range(sending.lanes + 1)]  # the last for smallest units
        self._control = _Lane(hop_s=rounds * self._round_s / 2)
        #: Lanes with slices that wait, in turns.
        self._line: deque[_Lane] = deque()
        self._taken = False
        #: What is next: when, a number for those at a time, the lane, the steps behind this one,
        #: and whether a slice leaves the wire or has come to the next rank.
        self._events: list[tuple[float, int, _Lane, int, bool]] = []
        self._count = itertools.count()

    @property
    def busy(self) -> bool:
        return bool(self._events)

    @property
    def next_s(self) -> float:
        """When something happens."""
        return self._events[0][0] if self._events else math.inf

    def agree(self, now: float) -> None:
        """Begin a round; `go_on` says when it is over."""
        self._come(self._control, 1, now)

    def give(self, unit: _Unit, now: float) -> None:
        """Let the lane that was given the least have it."""
        lane = self._lanes[-1]
        if unit.nbytes > _EXPRESS_BYTES:
            lane = min(self._lanes[:-1], key=lambda one: one.given)
            lane.given += unit.nbytes
        lane.queue.append(unit)
        if len(lane.queue) == 1:
            self._begin(lane, now)

    def go_on(self, now: float) -> bool:
        """Let time pass, no farther than `next_s`. Whether a round is over."""
        over = False
        while self._events and self._events[0][0] <= now:
            _, _, lane, behind, leaves = heapq.heappop(self._events)
            if leaves:
                self._taken = False
                self._expect(now + lane.hop_s, lane, behind, leaves=False)
                self._serve(now)
            elif behind > 0:
                self._come(lane, behind - 1, now)
            elif lane is self._control:
                over = True
            else:
                self._arrive(lane, now)
        return over

    def _begin(self, lane: _Lane, now: float) -> None:
        """Send the first unit of a lane, so that alone it takes what its operation takes."""
        nbytes = lane.queue[0].nbytes
        on_wire_s = self._byte_s * nbytes
        alone_s = float(self._cost.time(self._operation, nbytes)) - self._round_s
        step_s = on_wire_s / self._steps
        lane.left = max(1, min(_MOST_SLICES, round(step_s / _SLICE_S)))
        lane.slice_s = step_s / lane.left
        # Either the last slice of a step has left when its first one comes back, or the wire is
        # never idle.
        between_s = (alone_s - step_s + lane.slice_s) / self._steps
        waits = between_s >= step_s
        lane.hop_s = between_s - lane.slice_s if waits else max(0.0, alone_s - on_wire_s)
        for _ in range(lane.left):
            self._come(lane, self._steps - 1, now)

    def _come(self, lane: _Lane, behind: int, now: float) -> None:
        """A slice comes to the wire."""
        lane.ready.append(behind)
        if len(lane.ready) == 1:
            self._line.append(lane)
        self._serve(now)

    def _serve(self, now: float) -> None:
        """Let the next slice on the wire, if that is free."""
        if self._taken or not self._line:
            return
        lane = self._line.popleft()
        self._expect(now + lane.slice_s, lane, lane.ready.popleft(), leaves=True)
        self._taken = True
        if lane.ready:
            self._line.append(lane)

    def _arrive(self, lane: _Lane, now: float) -> None:
        """A slice has come to the last rank."""
        lane.left -= 1
        if lane.left > 0:
            return
        for group in lane.queue.popleft().groups:
            group.left -= 1
            if group.left == 0:
                group.done_s = now
        if lane.queue:
            self._begin(lane, now)

    def _expect(self, when_s: float, lane: _Lane, behind: int, *, leaves: bool) -> None:
        heapq.heappush(self._events, (when_s, next(self._count), lane, behind, leaves))


def _byte_s(operation: str, cost: CostModel) -> float:
    """Seconds of a byte on the wire: what more take, or what they took on average if less."""
    small, large = _WIRE_BYTES
    one, two = (float(cost.time(operation, large, lanes)) for lanes in (1, 2))
    more = (two - float(cost.time(operation, small, 2))) / (large - small)
    return min(more / 2, two / large / 2, one / large)


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
