"""Affine costs from measured times. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from statistics import median
from typing import NamedTuple

import numpy as np

#: Times the fit weighs its samples anew, by how far they are off.
_ROUNDS = 50
#: Relative errors beyond this multiple of the typical one weigh less (Huber's 1.345).
_HUBER = 1.345
#: Parts of a step, each of about as many seconds. More of them tell noise from costs better, but
#: what lanes send side by side has to be in one.
_PARTS = 6


def fit_affine(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds a >= 0 and seconds per byte b > 0 of a + b M.

    Least squares of relative errors, so that small messages count as much as large ones, weighed by
    Huber's function, so that outliers count less.

    Args:
        samples: Bytes and seconds, of at least two sizes.

    Raises:
        ValueError: They do not tell a from b.
    """
    nbytes, seconds = np.array(samples, float).reshape(-1, 2).T
    if len(np.unique(nbytes)) < 2 or not np.isfinite(seconds).all() or seconds.min() <= 0:
        raise ValueError(
            f"{len(samples)} samples of {len(np.unique(nbytes))} sizes (expected positive times of "
            "at least two sizes)"
        )
    a, b = _robust(np.ones(len(nbytes)), nbytes, seconds)
    if not b > 0:
        raise ValueError("times do not grow with bytes (expected larger sizes among the samples)")
    return a, b


class Operation(NamedTuple):
    """One operation of a step, with seconds of any clock."""

    submitted_s: float
    finished_s: float
    bytes: int


def samples_of_step(operations: Sequence[Operation]) -> list[tuple[float, float]]:
    """Bytes and seconds of the operations of a step, for `fit_affine`: samples that cost nothing.

    Each counts from its submission or from the end of the one before, whichever came later: the
    planners' model, in which one operation follows the other. Where several are under way at a
    time that gives what each adds to the step. Those that end together have travelled together,
    and are one sample.
    """
    samples = []
    free = -math.inf
    by_end = sorted(operations, key=lambda operation: operation.finished_s)
    for end, group in groupby(by_end, key=lambda operation: operation.finished_s):
        together = list(group)
        began = max(free, min(operation.submitted_s for operation in together))
        if end > began:
            samples.append((float(sum(operation.bytes for operation in together)), end - began))
        free = end
    return samples


def fit_steps(
    steps: Sequence[Sequence[Operation]], before: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Costs by the operations of some steps, with which the median step takes as long as it did.

    Fitted to parts of steps, as `fit_affine` does it to operations: lanes send several at a time,
    of which one seems to take long, and those that end soon after it next to nothing.

    Args:
        steps: Operations of each step.
        before: Costs that were assumed. Where steps do not tell a from b, because all operations
            were of one size, the proportion of these is kept; without them all is startup, as it is
            where small operations take as long as large ones.

    Returns:
        Seconds a >= 0 and seconds per byte b >= 0 of a + b M.

    Raises:
        ValueError: No operation took any time, or moved any bytes.
    """
    sampled = [step for step in map(samples_of_step, steps) if step]
    samples = [sample for step in sampled for sample in step]
    if not samples:
        raise ValueError(f"{len(steps)} steps without an operation (expected at least one)")
    if len({nbytes for nbytes, _ in samples}) < 2:
        a, b = before or (1.0, 0.0)
    else:
        parts = [part for step in sampled for part in _parts(step)]
        a, b = _robust(*np.array(parts, float).T)
    if not any(a + b * nbytes > 0 for nbytes, _ in samples):
        raise ValueError(f"{len(samples)} operations of 0 bytes (expected some with bytes)")
    # One that waits for a rank that is busy elsewhere says nothing about the network.
    off = median(
        sum(seconds for _, seconds in step) / sum(a + b * nbytes for nbytes, _ in step)
        for step in sampled
        if any(a + b * nbytes > 0 for nbytes, _ in step)
    )
    return a * off, b * off


def busy_s(steps: Sequence[Sequence[Operation]]) -> float:
    """Seconds of the operations of the median step, as `samples_of_step` counts them; 0 of none."""
    sampled = [samples_of_step(step) for step in steps]
    return median([sum(seconds for _, seconds in step) for step in sampled if step] or [0.0])


def _parts(samples: Sequence[tuple[float, float]]) -> list[tuple[int, float, float]]:
    """Number, bytes and seconds of what follows each other in a step, in parts of some length."""
    least = sum(seconds for _, seconds in samples) / _PARTS
    parts = [(0, 0.0, 0.0)]
    for nbytes, seconds in samples:
        number, sum_of_bytes, length = parts[-1]
        if length >= least:
            parts.append((1, nbytes, seconds))
        else:
            parts[-1] = number + 1, sum_of_bytes + nbytes, length + seconds
    return parts


def _robust(number: np.ndarray, nbytes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """A and b of a N + b M = T: least squares of relative errors, weighed by Huber's function."""
    weights = np.ones(len(nbytes))
    a = b = 0.0
    for _ in range(_ROUNDS):
        a, b = _constrained(nbytes / seconds, number / seconds, np.sqrt(weights))
        errors = np.abs((a * number + b * nbytes) / seconds - 1)
        scale = 1.4826 * float(np.median(errors)) + 1e-12
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(errors, 1e-300))
    return float(a), float(b)


def _constrained(x: np.ndarray, one: np.ndarray, root: np.ndarray) -> tuple[float, float]:
    """Of a * one + b * x = 1 with a, b >= 0."""
    matrix = np.column_stack([one, x]) * root[:, None]
    (a, b), *_ = np.linalg.lstsq(matrix / (scale := np.abs(matrix).max(axis=0)), root, rcond=None)
    if a < 0:
        return 0.0, float((x * root) @ root / ((x * root) @ (x * root)))
    if b < 0:
        return float((one * root) @ root / ((one * root) @ (one * root))), 0.0
    return float(a / scale[0]), float(b / scale[1])
