"""Which optimizer of its process set one is: two of them never mean the same by a name."""

from __future__ import annotations

from collections import Counter
from typing import Any

from aiacc import basics
from aiacc.process_sets import ProcessSet


class _Counts:
    """How many optimizers of each process set, by its ranks, were counted in this job."""

    def __init__(self) -> None:
        self.job = 0
        self._counted: Counter[tuple[int, ...]] = Counter()

    def count(self, process_set: ProcessSet) -> int:
        """Number of the next one, from 0."""
        ranks = tuple(process_set.ranks or ())
        self._counted[ranks] += 1
        return self._counted[ranks] - 1

    def restart(self) -> None:
        """Ranks may come with this `init` that have counted none."""
        self.job += 1
        self._counted.clear()


_counts = _Counts()
basics.at_init(_counts.restart)


class Identity:
    """The number of an optimizer among those of its process set.

    Every rank makes the same optimizers in the same order, which so have the same numbers. Copies,
    which one rank may make alone, and optimizers of an earlier job are counted when they are first
    used. The ranks compare numbers before the first step (`consensus.check_optimizers`).

    Attributes:
        agreed: Whether they have, in this job.
    """

    def __init__(self, origin: int | None = None) -> None:
        """Of no number yet; ``origin`` is that of the optimizer that it is a copy of."""
        self._origin = origin
        self._job, self._number = -1, -1
        self.agreed = False

    def number(self, process_set: ProcessSet) -> int:
        """Number of this one, from 0, which is counted with the first call in a job."""
        if self._job != _counts.job:
            self._number = _counts.count(process_set)
            if self._origin is None or self._job >= 0:  # ranks that come anew know of none
                self._origin = self._number
            self._job, self.agreed = _counts.job, False
        return self._number

    def described(self, process_set: ProcessSet) -> str:
        """What the ranks compare: this number, and that of what it is a copy of."""
        return f"{self.number(process_set)} of {self._origin}"

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has a number of its own."""
        return Identity, (self._origin,)


def next_identity(process_set: ProcessSet) -> Identity:
    """That of an optimizer which every rank of ``process_set`` makes now."""
    identity = Identity()
    identity.number(process_set)
    return identity
