"""Affine costs from measured times. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

#: Times the fit weighs its samples anew, by how far they are off.
_ROUNDS = 50
#: Relative errors beyond this multiple of the typical one weigh less (Huber's 1.345).
_HUBER = 1.345
#: Ratio of singular values below which sums hardly tell startups from bytes, and by how much what
#: is left of them has to be smaller for it to count nevertheless.
_ALIKE, _MUCH = 0.05, 2.0


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
    weights = np.ones(len(nbytes))
    a = b = 0.0
    for _ in range(_ROUNDS):
        a, b = _constrained(nbytes / seconds, 1 / seconds, np.sqrt(weights))
        errors = np.abs((a + b * nbytes) / seconds - 1)
        scale = 1.4826 * float(np.median(errors)) + 1e-12
        weights = np.minimum(1.0, _HUBER * scale / np.maximum(errors, 1e-300))
    if not b > 0:
        raise ValueError("times do not grow with bytes (expected larger sizes among the samples)")
    return float(a), float(b)


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
    """Costs by the operations of some steps, which in total take as long as those did.

    Least squares of how long the first operations of a step have taken together, for each number of
    them: lanes send several at a time, of which one seems to take long, and the others, that end
    soon behind it, nothing.

    Args:
        steps: Operations of each step.
        before: Costs that were assumed. Where steps do not tell a from b, because all operations
            were of one size, the proportion of these is kept; without them all is startup, as it is
            where small operations take as long as large ones.

    Returns:
        Seconds a >= 0 and seconds per byte b >= 0 of a + b M.

    Raises:
        ValueError: No operation took any time.
    """
    samples = [samples_of_step(step) for step in steps]
    samples = [step for step in samples if step]
    if not samples:
        raise ValueError(f"{len(steps)} steps without an operation (expected at least one)")
    if len({nbytes for step in samples for nbytes, _ in step}) < 2:
        a, b = before or (1.0, 0.0)
    else:
        sums = [
            np.cumsum([(1.0, nbytes, seconds) for nbytes, seconds in step], axis=0)
            for step in samples
        ]
        numbers, nbytes, seconds = np.concatenate(sums).T
        a, b = _nonnegative(numbers, nbytes, seconds)
    took = sum(seconds for step in samples for _, seconds in step)
    share = took / sum(a + b * nbytes for step in samples for nbytes, _ in step)
    return a * share, b * share


def _nonnegative(one: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Least squares of a * one + b * x = y with a, b >= 0.

    Of what grows alike each is half, unless that explains much less.
    """
    scale = one.max(), x.max()
    matrix = np.column_stack([one / scale[0], x / scale[1]])
    full, even = (np.linalg.lstsq(matrix, y, rcond=rcond)[0] for rcond in (None, _ALIKE))
    left, left_even = (float(np.sum((matrix @ found - y) ** 2)) for found in (full, even))
    a, b = even if left_even <= _MUCH * left else full
    if a < 0:
        return 0.0, float(x @ y / (x @ x))
    if b < 0:
        return float(one @ y / (one @ one)), 0.0
    return float(a / scale[0]), float(b / scale[1])


def _constrained(x: np.ndarray, one: np.ndarray, root: np.ndarray) -> tuple[float, float]:
    """Of a * one + b * x = 1 with a >= 0."""
    matrix = np.column_stack([one, x]) * root[:, None]
    (a, b), *_ = np.linalg.lstsq(matrix / (scale := np.abs(matrix).max(axis=0)), root, rcond=None)
    a, b = a / scale[0], b / scale[1]
    if a < 0:
        a = 0.0
        b = float((x * root) @ root / ((x * root) @ (x * root)))
    return float(a), float(b)
