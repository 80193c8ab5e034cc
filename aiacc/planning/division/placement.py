"""Which rank computes what, and in which waves results are exchanged. Pure.

Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969): the longest
processing time first ends at most 4/3 - 1/(3m) times as late as the best placement on m ranks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

#: Rank of each item; None: every rank computes it.
Owners = tuple[int | None, ...]
#: For each wave, for each rank, the items that it computes.
Waves = tuple[tuple[tuple[int, ...], ...], ...]


def longest_first(loads: Sequence[float], ranks: int) -> Owners:
    """Every item to the rank that has the least to do, the longest first.

    Equal on all ranks that are given the same arguments: of equal loads the first item comes first,
    of equal ranks the lowest.

    Args:
        loads: Of each item, in any unit.
        ranks: That share them.

    Raises:
        ValueError: No rank, or a load that is negative or no number.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks (expected >= 1)")
    for item, load in enumerate(loads):
        if not 0 <= load < math.inf:
            raise ValueError(f"load {load} of item {item} (expected finite, >= 0)")
    return assign(loads, ranks, largest_first(loads))


def largest_first(sizes: Sequence[float]) -> list[int]:
    """Items in that order; of equal ones the first one first."""
    return sorted(range(len(sizes)), key=lambda item: (-sizes[item], item))


def assign(loads: Sequence[float], ranks: int, order: Sequence[int]) -> Owners:
    """Each of the items in ``order`` to the rank with the least load so far; others to nobody."""
    owners: list[int | None] = [None] * len(loads)
    heap = [(0.0, rank) for rank in range(ranks)]
    for item in order:
        load, rank = heap[0]
        owners[item] = rank
        heapq.heapreplace(heap, (load + loads[item], rank))
    return tuple(owners)


def in_waves(loads: Sequence[float], owners: Owners, ranks: int, number: int) -> Waves:
    """Items that have an owner, in waves that end at about the same time on all ranks.

    The results of a wave travel together while the next one is computed. A rank computes its
    longest items first; one that ends in the r-th of ``number`` equal parts of the time of the
    busiest rank is in wave r. Waves in which nobody has anything are left out.

    Args:
        loads: Of each item.
        owners: Of each item; those of nobody are in no wave.
        ranks: That share them.
        number: The most waves that there are to be, >= 1.
    """
    ends: list[tuple[int, int, float]] = []
    clocks = [0.0] * ranks
    for item in largest_first(loads):
        owner = owners[item]
        if owner is not None:
            clocks[owner] += loads[item]
            ends.append((item, owner, clocks[owner]))
    busiest = max(clocks)
    waves: list[list[list[int]]] = [[[] for _ in range(ranks)] for _ in range(number)]
    for item, owner, end in ends:
        at = math.ceil(end / busiest * number) - 1 if busiest > 0 else 0
        waves[min(max(at, 0), number - 1)][owner].append(item)
    return tuple(tuple(map(tuple, one)) for one in waves if any(one))
