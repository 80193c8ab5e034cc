"""Random traces, costs and problems, and every plan there is, for small ones."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence

from aiacc.planning.cost import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Affine, Contention, Table
from aiacc.planning.plan import UNCONSTRAINED, Constraints
from aiacc.planning.problem import Problem
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


def with_dtypes(trace: Trace, dtypes: Sequence[str]) -> Trace:
    tensors = zip(trace.tensors, dtypes, strict=True)
    return dataclasses.replace(
        trace, tensors=tuple(dataclasses.replace(one, dtype=dtype) for one, dtype in tensors)
    )


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


#: Plain; with contention between lanes; with limits and keys of neighbours; with dtypes and keys
#: that take turns.
FAMILIES = ("plain", "contended", "constrained", "in turn")


def random_problems(
    number: int, seed: int, family: str = "plain", smallest: int = 3, largest: int = 10
) -> Iterator[Problem]:
    rng = random.Random(seed)
    for i in range(number):
        trace = random_trace(rng, rng.randint(smallest, largest))
        cost = random_affine(rng) if i % 2 else random_table(rng)
        constraints = UNCONSTRAINED
        if family == "contended":
            a, share = rng.choice((0.0, 0.1, 1.0)), rng.choice((1.0, 4 / 3, 2.5))
            cost = Affine(a, 1e-5, contention=Contention(share))
        elif family == "constrained":
            keys = sorted(rng.choice("aab") for _ in trace.tensors)
            constraints = Constraints(rng.choice((1, 50_000, 10**9)), keys)
        elif family == "in turn":
            trace = with_dtypes(trace, [rng.choice("aab") for _ in trace.tensors])
            keys = rng.choice((None, [rng.choice("cd") for _ in trace.tensors]))
            constraints = Constraints(rng.choice((None, 50_000)), keys)
        yield Problem(trace, cost, constraints)


def every_plan(count: int) -> list[list[int]]:
    """The ends of the buckets of every contiguous partition."""
    return [
        [*ends, count]
        for number in range(count)
        for ends in itertools.combinations(range(1, count), number)
    ]
