"""How the first dimension of a tensor is divided among ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def scattered_rows(rows: int, rank: int, size: int) -> int:
    """Rows that ``rank`` gets of a reducescatter; the first ranks get one more if it is uneven."""
    return rows // size + (rank < rows % size)


def checked_splits(
    splits: Iterable[Any] | None, rows: int, size: int, what: str
) -> tuple[int, ...]:
    """Rows that go to each rank of an all-to-all.

    Args:
        splits: What the user gave, whole numbers of any type; None divides the rows evenly.
        rows: First dimension of the tensor.
        size: Number of ranks.
        what: What they are for, such as ``"alltoall of 'x'"``.

    Raises:
        TypeError: They are no list.
        ValueError: They do not fit.
    """
    if splits is None:
        if rows % size != 0:
            raise ValueError(
                f"{what}: {rows} rows for {size} ranks (expected a multiple of {size}); "
                "give splits, a list of the rows for each rank"
            )
        return (rows // size,) * size
    try:
        given = tuple(splits)
    except TypeError:
        raise TypeError(
            f"{what}: splits={splits!r:.100} (expected a list of the rows for each rank)"
        ) from None
    numbers = tuple(_whole(count) for count in given)
    if len(given) != size:
        raise ValueError(
            f"{what}: {len(given)} splits {given} for {size} ranks (expected one for each rank)"
        )
    if min(numbers) < 0:
        raise ValueError(f"{what}: splits {given} (expected whole numbers >= 0)")
    if sum(numbers) > rows:
        raise ValueError(
            f"{what}: splits {given} add up to {sum(numbers)}, but the tensor has {rows} rows "
            "(expected at most as many)"
        )
    return numbers


def _whole(count: Any) -> int:
    """``count`` as an int, -1 if it is no whole number."""
    try:
        number = int(count)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if number == count else -1
