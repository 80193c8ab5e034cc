"""Random traces and costs, and every plan there is, for small ones."""

from __future__ import annotations

import itertools
import random

from aiacc.planning.cost import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Affine, Table
from aiacc.planning.trace import Tensor, Trace


def random_trace(rng: random.Random, count: int) -> Trace:
    forward_s = rng.random()
    ready = sorted(forward_s + rng.random() * 3 for _ in range(count))
    needs = sorted((rng.random() * forward_s for _ in range(count)), reverse=True)
    tensors = tuple(
        Tensor(f"t{i}", rng.choice((1, 10, 1000, 40_000, 250_000)), "float32", ready[i], needs[i])
        for i in range(count)
    )
    return Trace("random", tensors, forward_s, ready[-1] - forward_s, "modelled")


def random_affine(rng: random.Random) -> Affine:
    return Affine(rng.choice((0.0, 0.01, 0.3, 1.0)), rng.choice((1e-7, 1e-6, 1e-5)))


def random_table(rng: random.Random) -> Table:
    """Any monotone one, with jumps."""
    points = {}
    for operation in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER):
        sizes = sorted(rng.sample(range(1, 500_000), 5))
        times = sorted(rng.random() + 1e-3 for _ in sizes)
        points[operation, 1] = list(zip(sizes, times, strict=True))
    return Table(points)


def every_plan(count: int) -> list[list[int]]:
    """The ends of the buckets of every contiguous partition."""
    return [
        [*ends, count]
        for number in range(count)
        for ends in itertools.combinations(range(1, count), number)
    ]
