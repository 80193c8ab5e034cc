"""Affine costs from measured times. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Times the fit weighs its samples anew, by how far they are off.
_ROUNDS = 50
#: Relative errors beyond this multiple of the typical one weigh less (Huber's 1.345).
_HUBER = 1.345


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


def _constrained(x: np.ndarray, one: np.ndarray, root: np.ndarray) -> tuple[float, float]:
    """Of a * one + b * x = 1 with a >= 0."""
    matrix = np.column_stack([one, x]) * root[:, None]
    (a, b), *_ = np.linalg.lstsq(matrix / (scale := np.abs(matrix).max(axis=0)), root, rcond=None)
    a, b = a / scale[0], b / scale[1]
    if a < 0:
        a = 0.0
        b = float((x * root) @ root / ((x * root) @ (x * root)))
    return float(a), float(b)
