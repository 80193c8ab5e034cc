"""Which memory an operation may have, for whoever takes addresses. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any


def lacks_memory(tensor: Any) -> bool:
    """Whether a strided tensor has elements, and no memory of its own for them.

    It wraps other tensors, say, or its storage was freed. A view into freed memory has its offset
    for an address.
    """
    try:
        return bool(tensor.numel() > 0 and tensor.untyped_storage().data_ptr() == 0)
    except (RuntimeError, TypeError, ValueError):  # of parameters of lazy modules
        return True


def check_apart(places: Iterable[tuple[int, int]], what: str) -> None:
    """Raise ValueError if tensors that an operation overwrites, by address and bytes, overlap."""
    known = sorted((begin, begin + size, n) for n, (begin, size) in enumerate(places) if size)
    for (_, end, one), (begin, _, other) in itertools.pairwise(known):
        if begin < end:
            raise ValueError(
                f"{what}: tensors {min(one, other)} and {max(one, other)} share memory (expected "
                "memory of its own for each, which the operation writes to); leave one out, as of "
                "tied weights, or use the operation without underscore"
            )
