"""Which ranks a process group of torch has, and what stands for them in the core.

A group of all ranks uses the process set of all; every other one forms a set of its own, which its
members alone ask for. torch numbers its ranks once, for the default group; a job that another group
has started has these ranks alone, so their numbers in it are others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from aiacc import basics
from aiacc.bootstrap.providers.store import StoreProvider
from aiacc.process_sets import ProcessSet, form_process_set, global_process_set
from aiacc.torch.distributed import rendezvous
from aiacc.torch.distributed.work import Limit, limited, seconds_of


class Group(NamedTuple):
    """The ranks of a process group."""

    #: Operations are paired by counting them in their series; the same on all of these ranks.
    series: str
    process_set: ProcessSet
    #: Of this process in the group.
    rank: int
    #: Numbers in the job, by rank in the group; ascending.
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def number_of(self, rank: int) -> int:
        """Number in the job of rank ``rank`` of the group.

        Raises:
            ValueError: There is none.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"[torch] rank {rank} of a group (expected 0..{self.size - 1})")
        return self.ranks[rank]


class _Job:
    """Knows what torch calls the ranks of the job."""

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] | None = None

    def start(self, options: Any) -> bool:
        """Start the runtime with the ranks of a group, unless it is there; whether it was not."""
        if basics.is_initialized():
            return False
        members = tuple(options.global_ranks_in_group)
        if not members and rendezvous.take_found_here():
            basics.init()  # as the launcher says, which may have more to offer than a store
        else:
            rank, size = options.group_rank, options.group_size
            limit_s = seconds_of(options.timeout)
            basics.init_through(StoreProvider(options.store, rank, size, limit_s))
        self._ranks = members or tuple(range(options.group_size))
        return True

    def forget(self) -> None:
        """Called when somebody starts the runtime: torch's ranks are its own then."""
        self._ranks = None

    def numbers_of(self, ranks: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """What the job calls torch's ``ranks``, the one at ``rank`` being this process.

        Raises:
            ValueError: The job has not all of them, or others by these numbers.
        """
        known = self._ranks if self._ranks is not None else tuple(range(basics.size()))
        if not set(ranks) <= set(known) or known.index(ranks[rank]) != basics.rank():
            raise ValueError(
                f"[torch] group of ranks {list(ranks)} with this one as {ranks[rank]}, in a job of "
                f"ranks {list(known)} with this one as {known[basics.rank()]} (expected ranks of "
                "the job, by its numbers); give init_process_group the rank and size of the job, "
                'or create the group with backend="gloo"'
            )
        return tuple(known.index(one) for one in ranks)


def series_of(group_id: str, ranks: tuple[int, ...]) -> str:
    """The series of a group, as errors name it: "group 3 of ranks 0 to 7". Pure.

    torch counts the groups that a rank has seen, so others may have the same number, but not with
    the same first rank. The core takes what is before a dot for a verb, so it has none.
    """
    first, last = ranks[0], ranks[-1]
    if len(ranks) > 2 and last - first == len(ranks) - 1:
        members = f"ranks {first} to {last}"
    else:
        some = ", ".join(map(str, ranks[:4])) + (" and others" if len(ranks) > 4 else "")
        members = f"rank{'s' * (len(ranks) > 1)} {some}"
    return f"group {group_id} of {members}".replace(".", "_")


_job = _Job()
basics.at_init(_job.forget)


def open_group(options: Any) -> tuple[Group, bool]:
    """Make what torch asks for, and tell whether this started the runtime.

    Collective: the ranks of the group. Other ranks need not call anything.
    Blocks: until all of them have called and are connected.

    Raises:
        ValueError: Ranks that the job has not, or that do not ascend.
        CollectiveTimeoutError: The timeout of the group has passed.
        CollectiveError: The ranks could not connect; `MismatchError` if they named other ranks.
    """
    owns_runtime = _job.start(options)
    rank = options.group_rank
    of_torch = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    ranks = _job.numbers_of(of_torch, rank)
    if list(ranks) != sorted(ranks):
        raise ValueError(
            f"[torch] group of ranks {list(of_torch)} (expected them to ascend); leave out "
            "sort_ranks=False"
        )
    series = series_of(str(options.group_id), ranks)
    if len(ranks) == basics.size():
        return Group(series, global_process_set, rank, ranks), owns_runtime
    others = tuple(number for number in ranks if number != ranks[rank])
    with limited(Limit(seconds_of(options.timeout), "new_group", others)):
        process_set = form_process_set(series, ranks)
    return Group(series, process_set, rank, ranks), owns_runtime
