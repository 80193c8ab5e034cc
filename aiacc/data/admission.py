"""Where a record goes in the arena, and which records of its window are still there. Pure.

Without eviction the heap has two segments. Records that stay fill the first from its beginning.
The *window* is a ring in what these leave free: records that pass through are written one after
another up to the end, and then over the oldest. An eighth of the heap is the window's for ever. It
borrows the rest, which it loses as soon as a record that stays needs it: the segment's beginning
ends where those end.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aiacc.data.layout import ALIGNMENT, ENTRY, Eviction, Segment, aligned

_GENERATIONS = 1 << 32


@dataclass(frozen=True)
class Place:
    """Where a record goes."""

    segment: int
    begin: int
    #: Its segment with the record in it.
    after: Segment


def admit(
    segments: Sequence[Segment],
    size: int,
    evict: Eviction,
    may_go: bool = False,
    may_stay: bool = True,
) -> Place | None:
    """Where a record of ``size`` bytes goes; None: nowhere.

    Args:
        segments: All of them.
        size: Of the record.
        evict: The arena's.
        may_go: Whether a place in the window is worth while.
        may_stay: Whether it may have a place for ever.
    """
    needed = aligned(size, ALIGNMENT)
    if evict == "lru":
        return _in_least_recently_used(segments[1:], needed)
    stay, window = segments
    if may_stay and needed <= stay.room:
        return _appended(0, stay, needed)
    return _passing(stay, window, needed) if may_go else None


def bottom(stay: Segment, window: Segment) -> int:
    """Where the window's next lap begins.

    While records that stay keep coming, half of what is free is left to them: a lap that began
    beside them would lose its newest records first.
    """
    if stay.used == window.last_use:  # none has come in a whole lap
        return stay.used
    middle = (stay.used + window.end) // 2
    return min(stay.end, middle - middle % ALIGNMENT)


def is_in_window(begin: int, generation: int, stay: Segment, window: Segment) -> bool:
    """Whether the window still has a record: of this lap, or of the last one and further on."""
    if begin < stay.used:
        return False
    laps = (window.generation - generation) % _GENERATIONS
    return laps == 0 if begin < window.used else laps == 1


def is_free(data: bytes, segments: Sequence[Segment], evict: Eviction) -> bool:
    """Whether the place of an entry in the index may be taken: it is none, half a one, or void.

    Args:
        data: Of the entry.
        segments: All of them.
        evict: The arena's.
    """
    _, begin, _, _, number, generation, own = ENTRY.unpack(data)
    if number >= len(segments):
        return True
    if evict == "never" and number == 1:
        is_current = is_in_window(begin, generation, segments[0], segments[1])
    else:
        is_current = generation == segments[number].generation
    return not is_current or own != zlib.crc32(data[:-4])


def _passing(stay: Segment, window: Segment, needed: int) -> Place | None:
    start = window
    if window.used < stay.used:  # overtaken; what lies ahead is still of the last lap
        start = replace(window, used=bottom(stay, window), last_use=stay.used)
    if needed > start.room:
        generation = (window.generation + 1) % _GENERATIONS
        start = replace(
            window, used=bottom(stay, window), generation=generation, last_use=stay.used
        )
    return _appended(1, start, needed) if needed <= start.room else None


def _in_least_recently_used(segments: Sequence[Segment], needed: int) -> Place | None:
    if needed > segments[0].end - segments[0].begin:
        return None
    for number, one in enumerate(segments, 1):
        if needed <= one.room:
            return _appended(number, one, needed)
    oldest = min(range(len(segments)), key=lambda number: segments[number].last_use)
    one = segments[oldest]
    emptied = replace(one, used=one.begin, generation=(one.generation + 1) % _GENERATIONS)
    return _appended(1 + oldest, emptied, needed)


def _appended(number: int, segment: Segment, needed: int) -> Place:
    return Place(number, segment.used, replace(segment, used=segment.used + needed))
