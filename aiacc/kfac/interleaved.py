"""The exact plan for two queues that share a network, one operation at a time. Pure.

Second-order optimisers send factors and gradients. Neighbours of a queue may be merged, members of
different queues not, and which queue goes next is free. With f(i, j) the end of a schedule that has
sent the first i of one queue and the first j of the other,

    f(0, 0) = 0,   f(i, j) = min of   max(f(h, j), ready(i)) + T(h .. i)   over h < i
                             and      max(f(i, h), ready(j)) + T(h .. j)   over h < j

which is exact for any costs T, for the same reason as `optimal`: what follows never ends sooner
when what was before ends later. O(n m (n + m)).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from aiacc.planning.problem import Floats


@dataclass(frozen=True)
class Queue:
    """Tensors that leave in their order."""

    #: Seconds until each of them is there, ascending.
    ready: Floats
    #: Seconds of the buckets (0, j), (1, j) ... (j - 1, j), by j.
    costs_to: Callable[[int], Floats]


class Bucket(NamedTuple):
    """Tensors ``start`` to before ``end`` of the first (0) or the second (1) queue."""

    queue: int
    start: int
    end: int


def interleaved(first: Queue, second: Queue) -> tuple[list[Bucket], float]:
    """Buckets in the order in which they leave so that the last one ends soonest, and when."""
    n, m = len(first.ready), len(second.ready)
    finish = np.full((n + 1, m + 1), np.inf)
    finish[0, 0] = 0.0
    # Where the last bucket begins: in the first queue, or, as -1 - start, in the second.
    last = np.zeros((n + 1, m + 1), dtype=int)
    costs = [second.costs_to(j) for j in range(1, m + 1)]
    for i in range(n + 1):
        row = finish[i]
        if i > 0:
            times = np.maximum(finish[:i], first.ready[i - 1]) + first.costs_to(i)[:, None]
            last[i] = np.argmin(times, axis=0)
            row[:] = np.min(times, axis=0)
        for j in range(1, m + 1):
            ends = np.maximum(row[:j], second.ready[j - 1]) + costs[j - 1]
            start = int(np.argmin(ends))
            if ends[start] < row[j]:
                row[j], last[i, j] = ends[start], -1 - start
    buckets = []
    i, j = n, m
    while i or j:
        start = int(last[i, j])
        if start >= 0:
            buckets.append(Bucket(0, start, i))
            i = start
        else:
            buckets.append(Bucket(1, -1 - start, j))
            j = -1 - start
    return buckets[::-1], float(finish[n, m])
