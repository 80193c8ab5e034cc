"""One discrete-event engine: activities on resources, and when each of them begins and ends. Pure.

The graphs of the schedules are in `graphs`. Planners predict with formulas of their own; that both
say the same is tested.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """Work that one resource does when all of ``after`` are over."""

    name: str
    resource: str
    #: Seconds that it takes, by how many activities its resource does at that time: the first is
    #: for this one alone. Of more than there are entries the last one counts.
    seconds: tuple[float, ...]
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Interval:
    """When an activity ran."""

    activity: Activity
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """What was simulated, in the order of its starts."""

    intervals: tuple[Interval, ...]

    @property
    def end_s(self) -> float:
        """When the last activity is over."""
        return max((interval.end_s for interval in self.intervals), default=0.0)

    def of(self, name: str) -> Interval:
        """The interval of one activity."""
        return next(interval for interval in self.intervals if interval.activity.name == name)

    def busy_s(self, resource: str) -> float:
        """Seconds in which a resource does something."""
        total, until = 0.0, 0.0
        for interval in self.intervals:
            if interval.activity.resource == resource:
                total += max(0.0, interval.end_s - max(until, interval.start_s))
                until = max(until, interval.end_s)
        return total

    def chrome_trace(self) -> str:
        """JSON for Perfetto or chrome://tracing, in whole microseconds.

        A row for each resource, and more of them for what it does at the same time: viewers show no
        slices of a row that overlap.
        """
        events: list[dict[str, object]] = []
        rows = 0
        for resource in self.resources:
            intervals = [i for i in self.intervals if i.activity.resource == resource]
            times = [(round(i.start_s * 1e6), round(i.end_s * 1e6)) for i in intervals]
            places = rows_of(times)
            events += [
                {
                    "name": "thread_name",
                    "ph": "M",
                    "pid": 0,
                    "tid": rows + place,
                    "args": {"name": resource},
                }
                for place in sorted(set(places))
            ]
            events += [
                {
                    "name": interval.activity.name,
                    "ph": "X",
                    "pid": 0,
                    "tid": rows + place,
                    "ts": start,
                    "dur": end - start,
                }
                for interval, (start, end), place in zip(intervals, times, places, strict=True)
            ]
            rows += len(set(places))
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    @property
    def resources(self) -> list[str]:
        """Those that do anything."""
        return list(dict.fromkeys(interval.activity.resource for interval in self.intervals))


def rows_of(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """For intervals in the order of their starts, rows in which none overlap."""
    free: list[float] = []
    rows = []
    for start, end in intervals:
        row = next((n for n, until in enumerate(free) if until <= start + 1e-12), len(free))
        if row == len(free):
            free.append(end)
        free[row] = end
        rows.append(row)
    return rows


def simulate(activities: Sequence[Activity], slots: Mapping[str, int] | None = None) -> Timeline:
    """Run all activities.

    A resource begins its activities in the order of ``activities``, as soon as the next one may
    begin and one of its ``slots`` (1) is free.

    Raises:
        ValueError: Names are not unique, times are negative or not finite, or activities wait for
            each other, or for one that is not there.
    """
    names = [activity.name for activity in activities]
    if len(set(names)) != len(names):
        raise ValueError("two activities have one name (expected unique names)")
    queues: dict[str, deque[Activity]] = {}
    for activity in activities:
        queues.setdefault(activity.resource, deque()).append(activity)
        if not activity.seconds or not all(0 <= seconds < math.inf for seconds in activity.seconds):
            raise ValueError(
                f"{activity.name} takes {activity.seconds} (expected finite seconds, >= 0)"
            )
    over: set[str] = set()
    running: dict[str, dict[Activity, float]] = {resource: {} for resource in queues}
    starts: dict[str, float] = {}
    intervals: list[Interval] = []
    now = 0.0
    while len(over) < len(activities):
        for resource, queue in queues.items():
            free = (slots or {}).get(resource, 1) - len(running[resource])
            while queue and free > 0 and all(name in over for name in queue[0].after):
                activity = queue.popleft()
                running[resource][activity] = 1.0
                starts[activity.name] = now
                free -= 1
        ends = {
            activity: now + share * _pace(activity, len(active))
            for active in running.values()
            for activity, share in active.items()
        }
        if not ends:
            waiting = next(queue[0].name for queue in queues.values() if queue)
            raise ValueError(
                f"{waiting} waits for what never ends (expected an order without loops)"
            )
        until = min(ends.values())
        for active in running.values():
            number = len(active)
            for activity in list(active):
                if ends[activity] <= until:
                    del active[activity]
                    over.add(activity.name)
                    intervals.append(Interval(activity, starts[activity.name], until))
                else:
                    active[activity] -= (until - now) / _pace(activity, number)
        now = until
    intervals.sort(key=lambda interval: (interval.start_s, interval.end_s))
    return Timeline(tuple(intervals))


def _pace(activity: Activity, number: int) -> float:
    return activity.seconds[min(number, len(activity.seconds)) - 1]
