"""How the first dimension of a tensor is divided among ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def scattered_rows(rows: int, rank: int, size: int) -> int:
    """Rows that ``rank`` gets of a reducescatter; the first ranks get one more if it is uneven."""
    return rows // size + (rank < rows % size)


def checked_splits(
    splits: Sequence[int] | None, rows: int, size: int, what: str
) -> tuple[int, ...]:
    """Rows that go to each rank of an all-to-all.

    Args:
        splits: What the user gave; None divides the rows evenly.
        rows: First dimension of the tensor.
        size: Number of ranks.
        what: What they are for, such as ``"alltoall of 'x'"``.

    Raises:
        ValueError: They do not fit.
    """
    if splits is None:
        if rows % size != 0:
            raise ValueError(
                f"{what}: {rows} rows for {size} ranks (expected a multiple of {size}); "
                "give splits, a list of the rows for each rank"
            )
        return (rows // size,) * size
    given = tuple(splits)
    if len(given) != size:
        raise ValueError(
            f"{what}: {len(given)} splits {given} for {size} ranks (expected one for each rank)"
        )
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 0 for count in given):
        raise ValueError(f"{what}: splits {given} (expected whole numbers >= 0)")
    if sum(given) > rows:
        raise ValueError(
            f"{what}: splits {given} add up to {sum(given)}, but the tensor has {rows} rows "
            "(expected at most as many)"
        )
    return given
