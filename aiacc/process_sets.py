"""Sets of ranks that communicate among themselves.

`global_process_set` is all ranks, and what every collective takes by default. Others are given to
`aiacc.init`, or added later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from aiacc import _core, arguments
from aiacc.exceptions import CollectiveError


class ProcessSet:
    """Ranks that take part in a collective together.

    Attributes:
        process_set_id: Number that the core knows the set by; None while it is not registered.
        ranks: Global ranks of the members, ascending; None where nobody told them yet.
        mpi_comm: MPI communicator that the set was made from, or None.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """Describe a set of these global ranks, which `add_process_set` or `init` registers.

        Raises:
            ValueError: They are no whole numbers, or an MPI communicator.
        """
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError(
                f"ProcessSet({ranks_or_comm!r}): an MPI communicator (expected global ranks); pass "
                "the ranks of its members"
            )
        ranks = list(ranks_or_comm)
        if not (arguments.is_listing(ranks_or_comm) and all(map(arguments.is_whole, ranks))):
            raise ValueError(
                f"ProcessSet({ranks_or_comm!r:.100}) (expected whole numbers, the global ranks)"
            )
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = sorted(map(int, ranks))
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
        """Whether this rank is one of ``ranks``, registered or not; None before `init`."""
        if self.ranks is None or not _core.is_initialized():
            return None
        return _core.rank() in self.ranks

    def _registered_ranks(self) -> list[int] | None:
        if self.process_set_id is None or not _core.is_initialized():
            return None
        return self.ranks

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The global set has no copies: a copied or unpickled reference is to the same."""
        return (
            "global_process_set" if self is global_process_set else super().__reduce_ex__(protocol)
        )

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


#: What is registered besides `global_process_set`.
_registered: list[ProcessSet] = []


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a process set, from now on usable by every collective, and return it.

    Collective: every rank of the job, also those outside the set, in the same order as other
        changes of process sets.
    Blocks: until the members are connected to each other.

    Args:
        process_set: The set, or its global ranks.

    Raises:
        ValueError: Before `init`; ranks that do not exist; ranks that are a registered set already.
        CollectiveError: The ranks could not connect; `MismatchError` if they gave different ranks.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if not _core.is_initialized():
        raise ValueError("aiacc has not been initialized; use hvd.init().")
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} is registered already (expected a set that is not)")
    process_set.process_set_id = _core.add_process_set(tuple(process_set.ranks or ()))
    _registered.append(process_set)
    return process_set


def form_process_set(name: str, ranks: Iterable[int]) -> ProcessSet:
    """Register a process set without the ranks outside, and return it.

    Collective: these ranks, with the same name, which is that of no other set being formed.
    Blocks: until they are connected to each other.

    Args:
        name: Any but "".
        ranks: Global ranks, this one among them; they may be a set already.

    Raises:
        ValueError: Ranks that do not exist, or without this one.
        CollectiveError: The ranks could not connect; `MismatchError` if they gave different ranks.
    """
    process_set = ProcessSet(ranks)
    process_set.process_set_id = _core.form_process_set(name, tuple(process_set.ranks or ()))
    _registered.append(process_set)
    return process_set


def leave_process_set(process_set: ProcessSet) -> None:
    """Give up a process set that was formed, on this rank.

    It is gone when all members have left it. What others submit meanwhile, and this rank has not,
    fails. A set that is not registered any more stays as it is. If the job has ended,
    for whatever reason, nobody is told.

    Collective: no. Others may have shut down, or be lost.
    Blocks: never.
    """
    if process_set.process_set_id is not None and _core.is_initialized():
        with contextlib.suppress(CollectiveError):  # the job has ended, and its sets with it
            _core.leave_process_set(process_set.process_set_id)
        _unregister(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a process set. Operations that not all members have submitted by then fail.

    Collective: every rank of the job, also those outside the set.
    Blocks: until all ranks have called it.

    Returns:
        False for `global_process_set` and for a set that is not registered, which stay as they are.

    Raises:
        TypeError: It is no process set.
        CollectiveError: The ranks removed different sets (`MismatchError`), or a rank was lost.
    """
    arguments.check({"process_set": process_set})
    if process_set.process_set_id in (None, 0) or not _core.is_initialized():
        return False
    removed = _core.remove_process_set(set_id(process_set))
    if removed:
        _unregister(process_set)
    return removed


def unregister_all() -> None:
    """What `shutdown` does to process sets. The objects can be registered again."""
    for process_set in tuple(_registered):
        _unregister(process_set)
    global_process_set.ranks = None


def _unregister(process_set: ProcessSet) -> None:
    process_set.process_set_id = None
    _registered[:] = [other for other in _registered if other is not process_set]


def set_id(process_set: ProcessSet) -> int:
    """Number of ``process_set`` in the core.

    Raises:
        TypeError: It is no process set.
        ValueError: It is not registered.
    """
    try:
        number = process_set.process_set_id
    except AttributeError as error:
        raise arguments.explained(error, locals()) from None
    if number is None:
        raise ValueError(
            f"{process_set} is not registered (expected a set that add_process_set or init has "
            "registered since the last shutdown)"
        )
    return number


class RankAndSize(NamedTuple):
    """Where this process is in a set."""

    rank: int
    size: int


def has_company(process_set: ProcessSet) -> bool:
    """Whether this rank has others to work with in ``process_set``, in a job that runs."""
    return (
        _core.is_initialized()
        and _core.size() > 1
        and process_set.process_set_id is not None
        and bool(process_set.included())
    )


def first_rank(process_set: ProcessSet) -> int:
    """Global rank of the first member of ``process_set``: the root where any would do."""
    return process_set.ranks[0] if process_set.ranks else 0


def rank_and_size(process_set: ProcessSet) -> RankAndSize:
    """Index of this rank among the members of ``process_set``, and how many those are.

    Raises:
        ValueError: The set is not registered, or this rank is no member.
        CollectiveError: Not initialised.
    """
    if process_set is global_process_set:
        return RankAndSize(_core.rank(), _core.size())
    ranks = _core.process_set_ranks(set_id(process_set))
    if _core.rank() not in ranks:
        raise ValueError(
            f"rank {_core.rank()} is not in {process_set} (expected a member); "
            "check included() first"
        )
    return RankAndSize(ranks.index(_core.rank()), len(ranks))
