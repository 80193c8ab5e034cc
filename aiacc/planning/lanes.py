"""A plan for several operations at a time, with a bound that is proven for each instance. Pure.

Simultaneous all-reduces hide startups and fill what one flow cannot (Shi et al., "Exploiting
Simultaneous Communications to Accelerate Data Parallel Distributed Deep Learning", INFOCOM 2021,
with two; AIACC-Training with many). Where c are under way, one of M bytes takes T(M, c).

The bound: give an operation the weight w(M) = min over c of T(M, c) / c. While c of them are under
way, their weights disappear at a rate of at most the sum over them of (T / c) / T = 1, and that of
each at no more than w / T(M, 1). A bucket and those behind it start when it is ready or later. So
no step ends before

    ready(k) + the weights of bucket k and of those behind it, for each k,
    ready of the last one + T(M, 1),
    t + what is left of all weights at t, if each bucket has been alone since it is ready,

for any t of the computation. For some t the plan that makes the largest of all these least is found
as `optimal` finds its own: no plan ends before that.

The plan itself is a search. It begins with plans of several planners, the best one of each number
of buckets, and changes one bucket at a time, or two, while that helps. By how much it may miss the
best plan is `Plan.predicted_s / Plan.bound_s - 1`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from aiacc.planning.cost import ALL_REDUCE
from aiacc.planning.optimal import best_ends_of_each
from aiacc.planning.plan import Plan, cut
from aiacc.planning.problem import Floats, Problem
from aiacc.planning.schedule import all_reduce_step, all_reduce_steps

Ends: TypeAlias = tuple[int, ...]

_MOST = 64
#: Moments of the bound, as parts of the backward pass.
_MOMENTS = (0.0, 0.2, 0.3, 0.4, 0.5)
#: Up to so many operations at a time each number is tried; beyond, powers of two.
_EACH = 8
#: Buckets of equal bytes that a search may begin with, and with how many plans it does.
_EQUAL = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
_STARTS = 6
#: Buckets of plans that are simulated at a time, and what a search may cost: each bucket counts one
#: for each lane, and one of all plans that are simulated at a time so much more.
_AT_A_TIME, _EFFORT, _OVERHEAD = 5_000, 3_000_000, 1_500
#: Of the plans with one change, the best so many are changed once more.
_AGAIN = 16
#: Steps that differ by less, as a fraction, are equally long.
_SAME = 1e-9
#: Places in a bucket where it may be divided.
_PARTS = 8


def lanes(problem: Problem, most: int) -> Plan:
    """Buckets for up to ``most`` operations at a time; never worse than `optimal` with one.

    O(most L^2) time and O(most L) memory for L tensors.
    """
    if not 1 <= most <= _MOST:
        raise ValueError(f"lanes({most}) (expected 1 to {_MOST}, as of AIACC_LANES)")
    count, late, prefix = len(problem), problem.late, problem.prefix
    numbers = range(1, most + 1)
    tried = [n for n in numbers if n <= _EACH or n & (n - 1) == 0 or n == most]
    moments = np.array(_MOMENTS) * problem.trace.backward_s + problem.trace.forward_s
    begin = np.array([[0.0], [0.0], *moments[:, None]])

    def costs_to(j: int) -> Floats:
        """With one operation at a time; shares of the most; what is left of weights at moments."""
        first, elapsed = int(problem.first[j]), np.maximum(moments - late[j], 0.0)
        sizes = prefix[j] - prefix[first:j]
        costs = np.array([problem.cost.time(ALL_REDUCE, sizes, n) / n for n in numbers])
        weights, found = costs.min(axis=0), np.full((len(begin), j), np.inf)
        found[0, first:], found[1, first:], found[2:, first:] = costs[0], costs[-1], weights
        if elapsed.any():
            pace = np.divide(weights, costs[0], out=np.zeros(len(sizes)), where=costs[0] > 0)
            found[2:, first:] -= np.minimum(elapsed[:, None] * pace, weights)
        return found

    def earliest_of(j: int) -> Floats:
        """The last bucket is not through before it has taken what it takes alone."""
        if j < count:
            return np.asarray(np.maximum(begin, late[j]))
        costs, first = costs_to(count), int(problem.first[count])
        earliest = np.repeat(np.maximum(begin, late[j]), count, axis=1)
        alone = late[count] + costs[0, first:] - costs[:, first:]
        np.maximum(earliest[:, first:], alone, out=earliest[:, first:])
        return earliest

    found = best_ends_of_each(len(begin), count, costs_to, earliest_of)
    bound = max(problem.trace.compute_s, *(end for _, end in found[2:]))
    equal = (problem.ends_of_limit(float(prefix[-1]) / number) for number in _EQUAL)
    search = _Search(problem, tried[1:], bound)
    search.begin([*equal, *(ends for ends, _ in found)])
    # That with one operation at a time is known.
    alone, seconds = found[0]
    search.know(alone, max(problem.trace.compute_s, seconds), 1)
    (_, number), ends = search.best()
    seconds = all_reduce_step(problem, ends, number)
    return Plan(
        planner=f"lanes({most})",
        buckets=cut(problem.tensors, ends),
        lanes=number,
        predicted_s=seconds,
        bound_s=min(bound, seconds),
    )


class _Search:
    """Looks for plans by small changes of others."""

    def __init__(self, problem: Problem, numbers: list[int], bound: float) -> None:
        """Numbers of operations at a time, from 2 on; nothing is shorter than ``bound``."""
        self._problem, self._numbers = problem, numbers
        self._first = problem.first.tolist()
        self._enough = bound * (1 + _SAME)
        #: What is left, and what of that is for others.
        self._effort, self._kept = _EFFORT, 0
        #: Seconds of the step, and the number with which it is shortest.
        self._seen: dict[Ends, tuple[float, int]] = {}

    def begin(self, seeds: Iterable[Sequence[int]]) -> None:
        """With these plans, those of like lengths together: the longest takes the time of all."""
        for _, plans in itertools.groupby(
            sorted(map(tuple, seeds), key=len), lambda ends: len(ends).bit_length()
        ):
            self._simulate(plans)

    def know(self, ends: Sequence[int], seconds: float, number: int) -> None:
        """That a plan takes so long with a number of operations at a time."""
        known = self._seen.setdefault(tuple(ends), (seconds, number))
        self._seen[tuple(ends)] = min(known, (seconds, number))

    def best(self) -> tuple[tuple[float, int], Ends]:
        """The best plan that is found."""
        of_length: dict[int, Ends] = {}
        for ends in sorted(self._seen, key=self._seen.__getitem__):
            of_length.setdefault(len(ends), ends)
        starts = list(itertools.islice(of_length.values(), _STARTS))
        for left, ends in zip(range(len(starts), 0, -1), starts, strict=True):
            self._kept = self._effort - self._effort // left
            self._change(ends)
        return min((found, ends) for ends, found in self._seen.items())

    def _change(self, ends: Ends) -> None:
        while self._seen[ends][0] > self._enough:
            shorter, near = self._shorter(ends, _near(self._first, ends))
            if shorter is None:
                twice = (two for one in near[:_AGAIN] for two in _near(self._first, one))
                shorter, _ = self._shorter(ends, twice)
            if shorter is None:
                return
            ends = shorter

    def _shorter(self, ends: Ends, plans: Iterator[Ends]) -> tuple[Ends | None, list[Ends]]:
        """The shortest of the first plans, if it is shorter; and of all plans the shortest."""
        enough = self._seen[ends][0] * (1 - _SAME)
        best: list[Ends] = []
        while few := list(itertools.islice(plans, _AT_A_TIME // len(ends) + 1)):
            if not self._simulate(few):
                break
            best = sorted(dict.fromkeys([*best, *few]), key=self._seen.__getitem__)[:_AGAIN]
            if self._seen[best[0]][0] < enough:
                return best[0], best
        return None, best

    def _simulate(self, plans: Iterable[Ends]) -> bool:
        """Those that are new, unless that takes more than what is left of the effort."""
        new = [ends for ends in dict.fromkeys(plans) if ends not in self._seen]
        if not new:
            return True
        # More operations at a time than there are buckets change nothing.
        most = max(map(len, new))
        numbers = [n for less, n in itertools.pairwise([0, *self._numbers]) if less < most]
        effort = 2 * most * (_OVERHEAD + len(numbers) * max(numbers, default=0) * len(new))
        if not numbers or self._effort - effort < self._kept:
            return False
        self._effort -= effort
        at_once = [ends for ends in new for _ in numbers]
        steps = all_reduce_steps(self._problem, at_once, numbers * len(new))
        steps = steps.reshape(len(new), len(numbers))
        best = zip(steps.min(axis=1).tolist(), steps.argmin(axis=1).tolist(), strict=True)
        for ends, (seconds, at) in zip(new, best, strict=True):
            self._seen[ends] = seconds, numbers[at]
        return True


def _near(first: Sequence[int], ends: Ends) -> Iterator[Ends]:
    """Allowed plans with an end less or more, or with one or all from one on in other places."""
    *cuts, count = ends
    for number, end in reversed(list(enumerate(ends))):
        start = cuts[number - 1] if number else 0
        head, tail = ends[:number], ends[number + 1 :]
        parts = {start + (end - start) * part // _PARTS for part in range(1, _PARTS)}
        for place in sorted(parts - {start}):
            yield (*head, place, *ends[number:])
        if not tail:
            continue
        if first[tail[0]] <= start:
            yield head + tail
        for distance in _distances(start, end, tail[0]):
            if first[end + distance] <= start and first[tail[0]] <= end + distance:
                yield (*head, end + distance, *tail)
        for distance in _distances(start, end, count - cuts[-1] + end):
            moved = [*(cut + distance for cut in cuts[number:]), count]
            if all(first[j] <= i for i, j in itertools.pairwise([start, *moved])):
                yield (*head, *moved)


def _distances(start: int, end: int, stop: int) -> Iterator[int]:
    """By 1, 2, 4 ... to both sides of ``end``, between ``start`` and ``stop``."""
    distance = 1
    while end - distance > start or end + distance < stop:
        if end - distance > start:
            yield -distance
        if end + distance < stop:
            yield distance
        distance *= 2
