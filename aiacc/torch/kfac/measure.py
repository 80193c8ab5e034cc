"""What inversions and operations cost here, measured once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from aiacc.collectives.objects import maxima
from aiacc.kfac.costs import InversionTable
from aiacc.planning.cost import (
    ALL_REDUCE,
    BROADCAST,
    OPERATIONS,
    REDUCE_SCATTER,
    Affine,
)
from aiacc.process_sets import ProcessSet, first_rank
from aiacc.torch.kfac.solvers import Solver
from aiacc.torch.mpi_ops import (
    allgather_async,
    allreduce_async_,
    broadcast_async_,
    reducescatter_async,
    synchronize,
)

#: Points of a table, and what a dimension may take until larger ones are not measured: their times
#: are taken to grow with the third power.
POINTS, LONGEST_S = 6, 0.2
_REPEATS = 3
#: Bytes of the operations that are timed; none after one that took so long.
_PROBED, _PROBE_S = (1 << 12, 1 << 20, 1 << 22), 0.2


def dimensions(dims: Sequence[int]) -> list[int]:
    """Of the points of a table for factors of these dimensions. Pure."""
    least, most = min(dims), max(dims)
    points = np.geomspace(least, most, min(POINTS, len(set(dims))))
    return sorted({*(round(float(point)) for point in points)})


def inversion_table(dims: Sequence[int], like: torch.Tensor, solver: Solver) -> InversionTable:
    """Seconds of what ``solver`` computes on the device of ``like``, in its dtype, by dimension."""
    points = []
    for dim in dimensions(dims):
        points.append((dim, _inversion_s(dim, like, solver)))
        if points[-1][1] > LONGEST_S:
            break
    return InversionTable(tuple(points))


def _inversion_s(dim: int, like: torch.Tensor, solver: Solver) -> float:
    # One rank measures: what all draw alike from torch's generator has to stay alike.
    own = torch.Generator(like.device).manual_seed(dim)
    rows = torch.randn(dim, dim, generator=own, dtype=like.dtype, device=like.device)
    factor, damping = rows @ rows.T / dim, like.new_tensor(0.1)
    run = partial(solver.compute, [factor], [damping])
    took: list[float] = []
    while len(took) < _REPEATS and sum(took) < LONGEST_S:
        took.append(_seconds(run, like))
    return min(took)


def network(process_set: ProcessSet, ranks: int, device: torch.device) -> Affine:
    """A + b M of operations among these ranks, as the slowest sees them. Collective, blocks."""
    pairs = {}
    for operation in OPERATIONS:
        samples: list[tuple[float, float]] = []
        for nbytes in _PROBED:
            if samples and samples[-1][1] > _PROBE_S:
                break
            whole = torch.zeros(max(ranks, nbytes // 4 // ranks * ranks), device=device)
            name = f"kfac.probe.{operation}.{nbytes}"
            run = _operation(operation, whole, ranks, name, process_set)
            took = [_seconds(run, whole) for _ in range(_REPEATS)]
            (slowest,) = maxima([min(took[1:])], f"{name}.slowest", process_set)
            samples.append((float(nbytes), float(slowest)))
        pairs[operation] = through_ends(samples)
    return Affine(*pairs[ALL_REDUCE], pairs)


def through_ends(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """A and b by the smallest and the largest operation. Pure.

    Those between begin behind a pause, in which many networks save up for a burst. In a step there
    is none, so they would promise more than the network has.
    """
    (_, a), (most, seconds) = samples[0], samples[-1]
    return min(a, seconds), max(0.0, seconds - a) / most


def _operation(
    operation: str, whole: torch.Tensor, ranks: int, name: str, process_set: ProcessSet
) -> Callable[[], object]:
    """What does it, from start to end."""
    if operation == ALL_REDUCE:
        return lambda: synchronize(allreduce_async_(whole, None, name, process_set=process_set))
    if operation == REDUCE_SCATTER:
        return lambda: synchronize(reducescatter_async(whole, name, process_set=process_set))
    if operation == BROADCAST:
        root = first_rank(process_set)
        return lambda: synchronize(broadcast_async_(whole, root, name, process_set))
    part = whole[: len(whole) // ranks]
    return lambda: synchronize(allgather_async(part, name, process_set))


def _seconds(run: Callable[[], object], like: torch.Tensor) -> float:
    _settle(like)
    began = time.perf_counter()
    run()
    _settle(like)
    return time.perf_counter() - began


def _settle(like: torch.Tensor) -> None:
    if like.is_cuda:
        torch.cuda.synchronize(like.device)
