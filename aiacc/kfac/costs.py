"""What the inversion of a factor costs by its dimension, and what an inverse costs to send. Pure.

A factor is a symmetric matrix of d x d float32, of which the upper triangle travels.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

#: Bytes of an element of a factor.
WIDTH = 4


def packed_elements(dim: int) -> int:
    """Of the upper triangle of a matrix of ``dim`` x ``dim``, with the diagonal."""
    return dim * (dim + 1) // 2


def packed_bytes(dim: int) -> int:
    """The same in bytes."""
    return packed_elements(dim) * WIDTH


class InversionCost(Protocol):
    """Seconds of the inversion of one factor; does not fall as its dimension grows."""

    def seconds(self, dim: Any) -> Any:
        """Of dimension ``dim``, which may be an array."""
        ...


@dataclass(frozen=True)
class InversionTable:
    """Measured times: powers of d between its points, d^3 beyond the last, flat before the first.

    Times that fall as dimensions grow are raised to what came before, for that is noise.
    """

    #: Dimensions and seconds, in ascending order of dimensions.
    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        dims = [dim for dim, _ in self.points]
        if not dims or dims != sorted(set(dims)) or dims[0] < 1:
            raise ValueError(f"dimensions {dims} (expected one or more, >= 1, ascending)")
        for dim, seconds in self.points:
            if not 0 < seconds < math.inf:
                raise ValueError(
                    f"{seconds} s for dimension {dim} (expected finite and positive); measure again"
                )

    def seconds(self, dim: Any) -> Any:
        """See InversionCost."""
        dims, times = np.array(self.points, float).T
        times = np.maximum.accumulate(times)
        inside = np.exp(np.interp(np.log(dim), np.log(dims), np.log(times)))
        result = inside * np.maximum(1.0, np.asarray(dim, float) / dims[-1]) ** 3
        return result if np.ndim(dim) else float(result)


@dataclass(frozen=True)
class Polynomial:
    """c0 + c2 d^2 + c3 d^3: the call, the memory that is touched, the operations."""

    c0: float
    c2: float
    c3: float

    def __post_init__(self) -> None:
        if not all(0 <= c < math.inf for c in (self.c0, self.c2, self.c3)):
            raise ValueError(f"{self.c0}, {self.c2}, {self.c3} (expected finite, >= 0)")

    def seconds(self, dim: Any) -> Any:
        """See InversionCost."""
        return self.c0 + self.c2 * dim**2 + self.c3 * dim**3


@dataclass(frozen=True)
class Exponential:
    """a exp(r d), the form in which SPD-KFAC's authors fitted their GPU."""

    a: float
    rate: float

    def __post_init__(self) -> None:
        if not (0 < self.a < math.inf and 0 <= self.rate < math.inf):
            raise ValueError(f"a = {self.a} s, rate {self.rate} (expected a > 0, rate >= 0)")

    def seconds(self, dim: Any) -> Any:
        """See InversionCost."""
        return self.a * np.exp(self.rate * dim)


#: The fit of the authors' release (RTX 2080 Ti). It is far too slow for small matrices: it gives
#: the 108 factors of ResNet-50 0.65 s, where they measured 0.27 s.
PUBLISHED_EXPONENTIAL = Exponential(3.64e-3, 4.77e-4)


def fit(samples: Sequence[tuple[Sequence[int], float]]) -> Polynomial:
    """The polynomial with the least squares of relative errors and no negative coefficient.

    Args:
        samples: Dimensions of the factors that were inverted one after the other, and the seconds
            of all of them together.

    Raises:
        ValueError: No samples, or a time that is not positive.
    """
    if not samples or not all(dims and 0 < seconds < math.inf for dims, seconds in samples):
        raise ValueError(
            f"{len(samples)} samples (expected one or more, each of one or more factors in a "
            "finite, positive time)"
        )
    rows = []
    for dims, seconds in samples:
        d = np.array(dims, float)
        rows.append(np.array([len(d), (d**2).sum(), (d**3).sum()]) / seconds)
    matrix = np.array(rows)
    matrix /= (scale := matrix.max(axis=0))
    best, least = np.zeros(3), math.inf
    # The best of all subsets of three whose solution is not negative is the constrained optimum.
    for number in (1, 2, 3):
        for chosen in map(list, itertools.combinations(range(3), number)):
            found, *_ = np.linalg.lstsq(matrix[:, chosen], np.ones(len(rows)))
            error = float(((matrix[:, chosen] @ found - 1) ** 2).sum())
            if found.min() >= 0 and error < least * (1 - 1e-12):
                least = error
                best = np.zeros(3)
                best[chosen] = found
    return Polynomial(*(float(c) for c in best / scale))


def inversion_of(text: str) -> InversionCost:
    """Costs by what a user wrote: ``c0=1e-4,c2=1e-9,c3=1e-13``, or a file of JSON.

    The file has a list of pairs: a dimension, and the measured seconds of its inversion.

    Raises:
        ValueError: Which names what is wrong.
    """
    if "=" in text:
        fields: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            try:
                fields[name.strip()] = float(value)
            except ValueError as error:
                raise ValueError(f"{part} (expected a number, as in c0=1e-4)") from error
        strange = sorted(fields.keys() ^ {"c0", "c2", "c3"})
        if strange:
            raise ValueError(
                f"inversion {text!r}: {strange[0]} (expected c0, c2 and c3, once each)"
            )
        return Polynomial(**fields)
    path = Path(text)
    if not path.is_file():
        raise ValueError(f"inversion {text!r} (expected a file, or c0=1e-4,c2=1e-9,c3=1e-13)")
    try:
        rows = json.loads(path.read_text())
        return InversionTable(tuple((int(dim), float(seconds)) for dim, seconds in rows))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: no JSON ({error.msg})") from error
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: {error} (expected a list of pairs, such as [[64, 1e-4], [512, 3e-3]])"
        ) from error
