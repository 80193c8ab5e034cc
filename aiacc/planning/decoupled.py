"""The exact plan for reduce-scatter in the backward and all-gather in the next forward pass. Pure.

Schedule of Zhang et al., "Decoupling the All-Reduce Primitive for Accelerating Distributed Deep
Learning" (DeAR), ICDCS 2023 (arXiv 2302.12445), which tunes one size for all buckets. Here, with
P(b) and Q(b) the reduce-scatters and the all-gathers of bucket b and those that are ready later,

    backward = max(its compute, max over b of  ready(b) + P(b))
    forward  = max(its compute, max over b of  Q(b) + compute from the first use of b on)

and their sum is least. The least of either alone comes from the recurrence of `optimal`, for the
forward pass with time reversed. So does the least that, over all b, the sum of both terms may be:
no step is shorter, and one is often as long. Where that leaves more to prove, it is decided whether
a plan with backward <= beta and forward <= phi exists, by a programme over the first tensor of the
last buckets, O(L^2). A plan that is better than the sum S has a backward pass in some interval
(b, c], and then a forward pass of less than S - b: if no plan has backward <= c and forward <= S -
b, there is none, and the next interval is looked at; else the one that is found may be better, or
the interval is made smaller. That ends with the proof that no plan is better than the best one
found by more than the resolution. Where the two operations cost differently, and not by a line,
labels may be as many as plans: then it ends before, with a plan whose bound is further off.
"""

from __future__ import annotations

import contextlib

import numpy as np

from aiacc.planning.cost import ALL_GATHER, REDUCE_SCATTER
from aiacc.planning.optimal import best_ends_of_each
from aiacc.planning.plan import DECOUPLED, Plan, cut
from aiacc.planning.problem import Floats, Problem, kept
from aiacc.planning.schedule import decoupled_passes, decoupled_step

#: Of the step time: by how much a plan may miss the best one.
RESOLUTION = 2e-3
#: Labels that a search may look at, again and again, before it ends with what it has found.
_EFFORT = 50_000_000


def decoupled(problem: Problem, resolution: float = RESOLUTION) -> Plan:
    """The shortest step of schedule ``decoupled``, within ``resolution``, a fraction of it."""
    if not resolution > 0:
        raise ValueError(f"resolution {resolution} (expected > 0)")
    search = _Search(problem)
    trace = problem.trace
    (least_beta, least_phi, least_sum), plans = search.least()
    best_s, best = min((decoupled_step(problem, ends), ends) for ends in plans)
    bound = max(trace.compute_s, least_beta + least_phi, least_sum)
    with contextlib.suppress(_TooHardError):
        for gap in (10 * resolution, 3 * resolution, resolution):  # a good plan makes proofs short
            if bound >= best_s * (1 - gap):
                continue
            low, width = least_beta, gap * best_s
            while low < (last := best_s * (1 - gap) - least_phi):
                high = min(low + width, last)
                ends = search.plan_within(high, last + least_phi - low)
                if ends is None:
                    low, width = high, 2 * width
                    continue
                best_s, best = min((best_s, best), (decoupled_step(problem, ends), ends))
                width = max(gap * best_s / 2, width / 2)  # at that, what is found is better
            bound = max(bound, best_s * (1 - gap))
        if search.alike:  # of plans that are as good, one of few startups
            best = search.plan_within(*decoupled_passes(problem, best)) or best
            best_s = decoupled_step(problem, best)
    return Plan(
        planner="decoupled",
        buckets=cut(problem.tensors, best),
        schedule=DECOUPLED,
        predicted_s=best_s,
        bound_s=min(bound, best_s),
    )


class _TooHardError(Exception):
    """A search has looked at as many labels as it may."""


class _Search:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.effort = _EFFORT
        numbers = len(problem) ** 2 // 2
        self.scatter_from = kept(lambda i: problem.costs_from(i, REDUCE_SCATTER), numbers)
        self.gather_from = kept(lambda i: problem.costs_from(i, ALL_GATHER), numbers)
        self.tail_from = kept(self._tail_from, numbers)
        self.alike = all(
            np.array_equal(self.scatter_from(i), self.gather_from(i)) for i in range(len(problem))
        )
        self.ready = problem.ready - problem.trace.forward_s  # of the backward pass

    def _tail_from(self, start: int) -> Floats:
        """Seconds from the first use of a bucket's tensors to the end of the forward pass.

        Of the buckets (start, start + 1), (start, start + 2) ... (start, count).
        """
        problem = self.problem
        return problem.trace.forward_s - np.minimum.accumulate(problem.need[start:])

    def _tail_to(self, end: int) -> Floats:
        """The same of (0, end), (1, end) ... (end - 1, end)."""
        problem = self.problem
        return problem.trace.forward_s - np.minimum.accumulate(problem.need[end - 1 :: -1])[::-1]

    def least(self) -> tuple[tuple[float, float, float], list[list[int]]]:
        """Least seconds of the backward pass, of the forward pass and of both, and plans of these.

        With time reversed all-gathers follow each other in the order of the backward pass, and none
        begins before the compute after its first use has ended. Of both it is the greatest sum of a
        bucket's terms, which may be less than the sum of the greatest ones.
        """
        problem = self.problem

        def costs_to(j: int) -> Floats:
            scatter, gather = (problem.costs_to(j, op) for op in (REDUCE_SCATTER, ALL_GATHER))
            return np.array([scatter, gather, scatter + gather])

        def earliest_of(j: int) -> Floats:
            ready, tail = np.full(j, self.ready[j - 1]), self._tail_to(j)
            return np.array([ready, tail, ready + tail])

        found = best_ends_of_each(3, len(problem), costs_to, earliest_of)
        (_, backward), (_, forward), (_, both) = found
        trace = problem.trace
        backward, forward = max(trace.backward_s, backward), max(trace.forward_s, forward)
        return (backward, forward, both), [ends for ends, _ in found]

    def plan_within(self, beta: float, phi: float) -> list[int] | None:
        """Ends of buckets with which both passes are short enough, if there are such.

        Raises _TooHardError if that cannot be told.
        """
        slack = 1e-12 * max(1.0, self.problem.trace.compute_s)
        within = self._alike_within if self.alike else self._pairs_within
        return within(beta + slack, phi + slack)

    def _alike_within(self, beta: float, phi: float) -> list[int] | None:
        """Where both operations cost the same: the least seconds D of tensors i.. for each i."""
        count, costs_from, tail_from = len(self.problem), self.scatter_from, self.tail_from
        late = beta - self.ready
        least = np.zeros(count + 1)
        end_of = [0] * count
        for i in range(count - 1, -1, -1):
            seconds = costs_from(i) + least[i + 1 :]
            limit = np.minimum(phi - tail_from(i), late[i:])
            seconds[seconds > limit] = np.inf
            best = int(np.argmin(seconds))
            end_of[i], least[i] = i + 1 + best, seconds[best]
        if least[0] == np.inf:
            return None
        ends, i = [], 0
        while i < count:
            i = end_of[i]
            ends.append(i)
        return ends

    def _pairs_within(self, beta: float, phi: float) -> list[int] | None:
        """Where they do not.

        A label is a way to send tensors i.. : the seconds of its reduce-scatters and all-gathers.
        For each i there are all that no other one beats in both.
        """
        count = len(self.problem)
        late = np.concatenate([[0.0], beta - self.ready])  # by end of a bucket
        at, parent = np.array([count], np.int32), np.array([-1], np.int32)
        scatter, gather = np.zeros(1), np.zeros(1)
        for i in range(count - 1, -1, -1):
            self.effort -= len(at)
            if self.effort < 0:
                raise _TooHardError
            row = at - (i + 1)
            p = scatter + self.scatter_from(i)[row]
            q = gather + self.gather_from(i)[row]
            good = np.flatnonzero((p <= late[at]) & (q <= phi - self.tail_from(i)[row]))
            last = self._undominated(p, q, good)
            if not last.size:
                continue
            scatter, gather = np.append(scatter, p[last]), np.append(gather, q[last])
            at = np.append(at, np.full(last.size, i, np.int32))
            parent = np.append(parent, last)
        if at[-1] != 0:
            return None
        ends, label = [], len(parent) - 1
        while parent[label] >= 0:
            label = parent[label]
            ends.append(int(at[label]))
        return ends

    def _undominated(self, p: Floats, q: Floats, among: np.ndarray) -> np.ndarray:
        if among.size == 0:
            return among.astype(np.int32)
        order = among[np.lexsort((q[among], p[among]))]
        smallest = np.minimum.accumulate(np.concatenate([[np.inf], q[order][:-1]]))
        found: np.ndarray = order[q[order] < smallest].astype(np.int32)
        return found
