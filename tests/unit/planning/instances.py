"""Random traces, costs and problems, and every plan there is, for small ones."""

import dataclasses
import itertools
import random

from aiacc.planning.cost import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Affine, Contention, Table
from aiacc.planning.plan import UNCONSTRAINED, Constraints
from aiacc.planning.problem import Problem
from aiacc.planning.trace import Tensor, Trace


def random_trace(rng, count):
    forward_s = rng.random()
    ready = sorted(forward_s + rng.random() * 3 for _ in range(count))
    needs = sorted((rng.random() * forward_s for _ in range(count)), reverse=True)
    tensors = tuple(
        Tensor(f"t{i}", rng.choice((1, 10, 1000, 40_000, 250_000)), "float32", ready[i], needs[i])
        for i in range(count)
    )
    return Trace("random", tensors, forward_s, ready[-1] - forward_s, "modelled")


def made_trace(rows, forward_s=0.0, backward_s=None, source="modelled"):
    """Of tensors of (bytes, ready) or (bytes, ready, dtype), of which the last one may end it."""
    tensors = tuple(
        Tensor(f"t{i}", nbytes, *(dtype or ["float32"]), ready, 0.0)
        for i, (nbytes, ready, *dtype) in enumerate(rows)
    )
    if backward_s is None:
        backward_s = tensors[-1].ready_s - forward_s
    return Trace("made up", tensors, forward_s, backward_s, source)


def with_dtypes(trace, dtypes):
    tensors = zip(trace.tensors, dtypes, strict=True)
    return dataclasses.replace(
        trace, tensors=tuple(dataclasses.replace(one, dtype=dtype) for one, dtype in tensors)
    )


def random_table(rng):
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


def random_problems(number, seed, family="plain", smallest=3, largest=10):
    rng = random.Random(seed)
    for i in range(number):
        trace = random_trace(rng, rng.randint(smallest, largest))
        if i % 2:
            cost = Affine(rng.choice((0.0, 0.01, 0.3, 1.0)), rng.choice((1e-7, 1e-6, 1e-5)))
        else:
            cost = random_table(rng)
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


def every_plan(count):
    """The ends of the buckets of every contiguous partition."""
    return [
        [*ends, count]
        for number in range(count)
        for ends in itertools.combinations(range(1, count), number)
    ]


def busiest(loads, owners, ranks):
    """The load of the rank that has most."""
    pairs = list(zip(loads, owners, strict=True))
    return max(sum(load for load, owner in pairs if owner == rank) for rank in range(ranks))
