"""The exact plan for reduce-scatter in the backward and all-gather in the next forward pass. Pure.

Schedule of Zhang et al., "Decoupling the All-Reduce Primitive for Accelerating Distributed Deep
Learning" (DeAR), ICDCS 2023 (arXiv 2302.12445), which tunes one size for all buckets. Here, with
P(b) and Q(b) the reduce-scatters and the all-gathers of bucket b and those that are ready later,

    backward = max(its compute, max over b of  ready(b) + P(b))
    forward  = max(its compute, max over b of  Q(b) + compute from the first use of b on)

and their sum is least. Whether a plan with backward <= beta and forward <= phi exists is decided by
a programme over the first tensor of the last buckets, O(L^2); phi by bisection, and beta by
bisection of those intervals that the bound low + phi(high) leaves, as phi never grows with beta.
"""

from __future__ import annotations

import heapq

import numpy as np

from aiacc.planning.cost import ALL_GATHER, REDUCE_SCATTER
from aiacc.planning.optimal import best_ends
from aiacc.planning.plan import DECOUPLED, Plan, cut
from aiacc.planning.problem import Floats, Problem
from aiacc.planning.schedule import decoupled_step

#: Of the step time: by how much a plan may miss the best one.
RESOLUTION = 2e-3


def decoupled(problem: Problem, resolution: float = RESOLUTION) -> Plan:
    """The shortest step of schedule ``decoupled``, within ``resolution``, a fraction of it."""
    if not resolution > 0:
        raise ValueError(f"resolution {resolution} (expected > 0)")
    search = _Search(problem)
    trace = problem.trace
    least_beta = search.least_backward()
    # Without a limit on the backward pass, the forward pass is as short as it can be.
    least_phi, ends = search.least_forward(np.inf, trace.forward_s, resolution)
    best_s, best = decoupled_step(problem, ends), ends
    highest = best_s - least_phi
    _, ends = search.least_forward(least_beta, least_phi, resolution)
    seconds = decoupled_step(problem, ends)
    if seconds < best_s:
        best_s, best = seconds, ends
    # Intervals of beta with phi at both ends, the one with the lowest bound first.
    queue = [(least_beta + least_phi, least_beta, highest, least_phi)]
    while queue:
        bound, low, high, phi_high = heapq.heappop(queue)
        if bound >= best_s * (1 - resolution):
            heapq.heappush(queue, (bound, low, high, phi_high))
            break
        middle = (low + high) / 2
        phi, ends = search.least_forward(middle, phi_high, resolution)
        seconds = decoupled_step(problem, ends)
        if seconds < best_s:
            best_s, best = seconds, ends
        heapq.heappush(queue, (low + phi, low, middle, phi))
        heapq.heappush(queue, (middle + phi_high, middle, high, phi_high))
    bound = min((entry[0] for entry in queue), default=best_s)
    return Plan(
        planner="decoupled",
        buckets=cut(trace, best),
        schedule=DECOUPLED,
        predicted_s=best_s,
        bound_s=max(trace.compute_s, min(bound, best_s)),
    )


class _Search:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.scatter = problem.costs(REDUCE_SCATTER)
        self.gather = problem.costs(ALL_GATHER)
        self.alike = bool(np.array_equal(self.scatter, self.gather))
        count, forward_s = len(problem), problem.trace.forward_s
        # From the first use of any tensor of (i, j) to the end of the forward pass.
        self.tail = np.zeros((count + 1, count + 1))
        for i in range(count):
            self.tail[i, i + 1 :] = forward_s - np.minimum.accumulate(problem.need[i:])
        self.ready = problem.ready - forward_s  # of the backward pass

    def least_backward(self) -> float:
        """Seconds of the backward pass of the plan that has the shortest."""
        # The same recurrence as for an all-reduce, whose clock starts with the forward pass.
        forward_s = self.problem.trace.forward_s
        _, finish = best_ends(self.problem, self.scatter)
        return max(self.problem.trace.backward_s, finish - forward_s)

    def least_forward(self, beta: float, low: float, resolution: float) -> tuple[float, list[int]]:
        """Shortest forward pass of plans whose backward pass takes at most ``beta``, and its plan.

        The first value is a bound from below that no such plan beats; at least ``low``.
        """
        ends = self.plan_within(beta, np.inf)
        assert ends is not None
        high = self.forward_of(ends)
        step = resolution * self.problem.trace.compute_s / 4 or resolution
        while high - low > step:
            middle = (low + high) / 2
            found = self.plan_within(beta, middle)
            if found is None:
                low = middle
            else:
                ends, high = found, min(middle, self.forward_of(found))
        return min(low, high), ends

    def forward_of(self, ends: list[int]) -> float:
        forward, arrived = self.problem.trace.forward_s, 0.0
        starts = [0, *ends[:-1]]
        for start, end in zip(reversed(starts), reversed(ends), strict=True):
            arrived += self.gather[start, end]
            forward = max(forward, arrived + self.tail[start, end])
        return float(forward)

    def plan_within(self, beta: float, phi: float) -> list[int] | None:
        """Ends of buckets with which both passes are short enough, if there are such.

        A label is a way to send tensors i.. : the seconds of its reduce-scatters and all-gathers.
        Where both cost the same there is one for each i, else all that no other one beats in both.
        """
        count = len(self.problem)
        slack = 1e-12 * max(1.0, self.problem.trace.compute_s)
        late = np.concatenate([[0.0], beta + slack - self.ready])  # by end of a bucket
        at = np.array([count])
        scatter, gather = np.zeros(1), np.zeros(1)
        parent: list[int] = [-1]
        last: list[int] = []
        for i in range(count - 1, -1, -1):
            p = scatter + self.scatter[i, at]
            q = gather + self.gather[i, at]
            good = np.flatnonzero((p <= late[at]) & (q <= phi + slack - self.tail[i, at]))
            last = self._undominated(p, q, good)
            if not last:
                continue
            scatter, gather = np.append(scatter, p[last]), np.append(gather, q[last])
            at = np.append(at, np.full(len(last), i))
            parent.extend(last)
        if at[-1] != 0:
            return None
        ends, label = [], len(parent) - 1
        while parent[label] >= 0:
            label = parent[label]
            ends.append(int(at[label]))
        return ends

    def _undominated(self, p: Floats, q: Floats, among: np.ndarray) -> list[int]:
        if among.size == 0:
            return []
        if self.alike:
            return [int(among[np.argmin(p[among])])]
        order = among[np.lexsort((q[among], p[among]))]
        smallest = np.minimum.accumulate(np.concatenate([[np.inf], q[order][:-1]]))
        return [int(label) for label in order[q[order] < smallest]]
