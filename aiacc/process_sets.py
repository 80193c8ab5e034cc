"""Sets of ranks that communicate among themselves.

So far there is one, `global_process_set`, which every collective takes by default.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aiacc import _core


class ProcessSet:
    """Ranks that take part in a collective together.

    Attributes:
        process_set_id: Number that the core knows the set by; None while it is not registered.
        ranks: Global ranks of the members, ascending; None where nobody told them yet.
        mpi_comm: MPI communicator that the set was made from, or None.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """Describe a set of these global ranks."""
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = sorted(ranks_or_comm)
        self.mpi_comm: object | None = None

    def size(self) -> int | None:
        """Number of members; None for a set that is not registered."""
        return None if self._registered_ranks() is None else len(self.ranks or ())

    def rank(self) -> int | None:
        """Index of this rank among the members; None for a set that is not registered.

        Raises:
            ValueError: This rank is no member.
        """
        ranks = self._registered_ranks()
        if ranks is None:
            return None
        if _core.rank() not in ranks:
            raise ValueError(
                f"rank {_core.rank()} is not in {self} (expected a member); check included() first"
            )
        return ranks.index(_core.rank())

    def included(self) -> bool | None:
        """Whether this rank is a member; None for a set that is not registered."""
        ranks = self._registered_ranks()
        return None if ranks is None else _core.rank() in ranks

    def _registered_ranks(self) -> list[int] | None:
        if self.process_set_id is None or not _core.is_initialized():
            return None
        return self.ranks

    def __repr__(self) -> str:
        """``ProcessSet(process_set_id=0, ranks=[0, 1])``."""
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


def _all_ranks() -> ProcessSet:
    everyone = ProcessSet(())
    everyone.process_set_id = 0
    everyone.ranks = None
    return everyone


#: Every rank of the job. `aiacc.init` fills its ``ranks``.
global_process_set = _all_ranks()


def set_id(process_set: ProcessSet) -> int:
    """Number of ``process_set`` in the core.

    Raises:
        ValueError: It is not registered.
    """
    if process_set.process_set_id is None:
        raise ValueError(
            f"{process_set} is not registered (expected global_process_set); "
            "leave out the argument process_set"
        )
    return process_set.process_set_id


class Place(NamedTuple):
    """Where this process is in a set."""

    rank: int
    size: int


def place_in(process_set: ProcessSet) -> Place:
    """Index of this rank among the members of ``process_set``, and how many those are.

    Raises:
        ValueError: The set is not registered, or this rank is no member.
        CollectiveError: Not initialised.
    """
    if process_set is global_process_set:
        return Place(_core.rank(), _core.size())
    ranks = _core.process_set_ranks(set_id(process_set))
    if _core.rank() not in ranks:
        raise ValueError(
            f"rank {_core.rank()} is not in {process_set} (expected a member); "
            "check included() first"
        )
    return Place(ranks.index(_core.rank()), len(ranks))
