"""How much the rank with most has of neighbours in a queue, whatever number of ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aiacc.planning.problem import Floats


class Shares:
    """Of tensors that leave in their order, each to or from its owner.

    To ask for all ends in ascending order is O(n^2) in time and O(n) in memory, for n tensors.
    """

    def __init__(self, owners: Sequence[int | None], sizes: Sequence[float]) -> None:
        """``sizes`` of the tensors that have an owner; others count nothing."""
        self._owners, self._sizes = list(owners), list(sizes)
        self._restart()

    def most(self, end: int) -> Floats:
        """Of the tensors from 0, 1 ... ``end`` - 1 to before ``end``: of the rank with most."""
        if end < self._end:
            self._restart()
        while self._end < end:
            self._add(self._end)
        return np.array(self._most[:end], float)

    def _restart(self) -> None:
        self._end = 0
        self._most = np.zeros(len(self._owners))
        #: Of each owner, the numbers and sizes of what it has before `_end`.
        self._numbers: dict[int, list[int]] = {}
        self._parts: dict[int, list[float]] = {}

    def _add(self, number: int) -> None:
        self._end = number + 1
        owner = self._owners[number]
        if owner is None:
            return
        numbers = self._numbers.setdefault(owner, [])
        parts = self._parts.setdefault(owner, [])
        numbers.append(number)
        parts.append(self._sizes[number])
        # What this owner has from each tensor on; that of others is as before.
        later = np.cumsum(parts[::-1])[::-1]
        own = np.repeat(later, np.diff(numbers, prepend=-1))
        np.maximum(self._most[: number + 1], own, out=self._most[: number + 1])
