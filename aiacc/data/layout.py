"""How the arena's file is divided, and what lies where in its index. Pure.

``header | segments | counters | index | heap``. The heap is divided into segments, which are
filled from their beginning and emptied as a whole: a segment's *generation* grows when it is
emptied, and entries of older generations are void. Records that stay for ever go to segment 0. The
others are those of an LRU cache, or the *window* of records that have been fetched ahead and found
no room to stay.

An index entry is written by one process at a time and read by all without a lock, so it ends with a
checksum of itself: an entry that is half written counts as none.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Eviction = Literal["never", "lru"]

HEADER = struct.Struct("<8sIIQQQQ")
MAGIC = b"aiacc-a1"
SEGMENTS_AT = 256
SEGMENT = struct.Struct("<QQQQQ")  # begin, end, where the next record goes, generation, last use
LAST_USE = struct.Struct("<Q")
#: Processes that count; each has a row of counters.
ROWS = 192
ROW_BYTES = 256
ENTRY = struct.Struct("<16sQQIIII")  # key, begin, size, checksum, segment, generation, own checksum
#: Entries looked at for a key at most.
PROBES = 64
ALIGNMENT = 64
_PAGE = 4096
#: Segments of an LRU cache: so many parts of it are emptied one by one.
_LRU_SEGMENTS = 32
_WINDOW_SEGMENTS = 8
#: Share of a cache that never evicts which is the window.
_WINDOW_SHARE = 8
#: Share of the file that the index may have.
_INDEX_SHARE = 8


@dataclass(frozen=True)
class Layout:
    """Where everything is. `plan` makes it, `pack` and `unpack` bring it into the file."""

    size: int
    entries: int
    #: Begin and end of each segment.
    segments: tuple[tuple[int, int], ...]

    @property
    def rows_at(self) -> int:
        """Where the counters begin."""
        return _aligned(SEGMENTS_AT + SEGMENT.size * len(self.segments), _PAGE)

    @property
    def index_at(self) -> int:
        """Where the index begins."""
        return self.rows_at + ROWS * ROW_BYTES

    @property
    def heap_at(self) -> int:
        """Where records begin; everything before is always in memory."""
        return _aligned(self.index_at + self.entries * ENTRY.size, _PAGE)

    def segment_at(self, number: int) -> int:
        """Where the description of a segment is."""
        return SEGMENTS_AT + SEGMENT.size * number

    def probes(self, key: bytes) -> range:
        """Numbers of the entries where a key may be, in the order in which it takes them.

        Steps are the key's own, too, so that keys do not crowd together.
        """
        first = int.from_bytes(key[:8], "little") % self.entries
        step = 1 + int.from_bytes(key[8:], "little") % (self.entries - 1)
        return range(first, first + PROBES * step, step)

    def entry_at(self, number: int) -> int:
        """Where an entry of the index is."""
        return self.index_at + ENTRY.size * (number % self.entries)

    def pack(self) -> bytes:
        """Everything before the counters, for an arena that is empty."""
        head = HEADER.pack(MAGIC, ENTRY.size, len(self.segments), self.size, self.entries, 0, 0)
        table = b"".join(Segment(begin, end, begin, 1, 0).pack() for begin, end in self.segments)
        return head.ljust(SEGMENTS_AT, b"\0") + table

    @staticmethod
    def unpack(data: bytes) -> Layout:
        """Inverse of `pack`. Raises ValueError for what another version has written."""
        magic, entry, count, size, entries, *_ = HEADER.unpack_from(data)
        if magic != MAGIC or entry != ENTRY.size:
            raise ValueError("an arena of another version")
        table = [Segment.unpack(data[at : at + SEGMENT.size]) for at in _places(count)]
        return Layout(size, entries, tuple((one.begin, one.end) for one in table))


def plan(size: int, samples: int | None, evict: Eviction) -> Layout:
    """The layout of an arena of at most ``size`` bytes.

    Args:
        size: Bytes of the whole file; 0 is allowed: such an arena has counters and no records.
        samples: How many records there may be; None: unknown, guessed at 4 KiB each.
        evict: "never": records stay, but for the window; "lru": all may go.
    """
    wanted = size // 4096 if samples is None else samples
    most = max(PROBES, min(wanted * 3 // 2, size // _INDEX_SHARE // ENTRY.size))
    entries = _prime_up_to(most)  # so that every step leads everywhere
    count = 1 + (_LRU_SEGMENTS if evict == "lru" else _WINDOW_SEGMENTS)
    empty = Layout(0, entries, ((0, 0),) * count)
    room = max(0, size - empty.heap_at)
    moving = room if evict == "lru" else room // _WINDOW_SHARE
    each = moving // (count - 1) // ALIGNMENT * ALIGNMENT
    begin = empty.heap_at + (room - each * (count - 1)) // ALIGNMENT * ALIGNMENT
    segments = [(empty.heap_at, empty.heap_at if evict == "lru" else begin)]
    for number in range(count - 1):
        segments.append((begin + number * each, begin + (number + 1) * each))
    return Layout(max(size, empty.heap_at), entries, tuple(segments))


@dataclass(frozen=True)
class Segment:
    """What the table says about a segment at the moment."""

    begin: int
    end: int
    used: int
    generation: int
    last_use: int

    def pack(self) -> bytes:
        """The bytes of the table."""
        return SEGMENT.pack(self.begin, self.end, self.used, self.generation, self.last_use)

    @staticmethod
    def unpack(data: bytes) -> Segment:
        """Inverse of `pack`."""
        return Segment(*SEGMENT.unpack(data))

    @property
    def room(self) -> int:
        """Bytes that are free at its end."""
        return self.end - self.used


@dataclass(frozen=True)
class Place:
    """Where a record goes, and whether its segment is emptied before."""

    segment: int
    empties: bool


def admit(
    segments: Sequence[Segment], size: int, may_go: bool, evict: Eviction, may_stay: bool = True
) -> Place | None:
    """Where a record of ``size`` bytes goes; None: nowhere.

    Args:
        segments: All of them.
        size: Of the record.
        may_go: Whether it was fetched ahead, so that a place in the window is worth while.
        evict: The arena's.
        may_stay: Whether it may have a place for ever.
    """
    needed = _aligned(size, ALIGNMENT)
    stay, moving = segments[0], segments[1:]
    if may_stay and needed <= stay.room:
        return Place(0, False)
    if (evict == "never" and not may_go) or needed > moving[0].end - moving[0].begin:
        return None
    for number, one in enumerate(moving, 1):
        if needed <= one.room:
            return Place(number, False)
    oldest = min(range(len(moving)), key=lambda number: moving[number].last_use)
    return Place(1 + oldest, True)


@dataclass(frozen=True)
class Entry:
    """A record in the index."""

    key: bytes
    begin: int
    size: int
    checksum: int
    segment: int
    generation: int

    def pack(self) -> bytes:
        """The bytes of the index."""
        fields = (self.key, self.begin, self.size, self.checksum, self.segment, self.generation)
        data = ENTRY.pack(*fields, 0)[:-4]
        return data + zlib.crc32(data).to_bytes(4, "little")

    @staticmethod
    def unpack(data: bytes) -> Entry | None:
        """Inverse of `pack`; None for what is no entry, or half of one."""
        *fields, own = ENTRY.unpack(data)
        return Entry(*fields) if own == zlib.crc32(data[:-4]) else None


def is_free(data: bytes, generations: Sequence[int]) -> bool:
    """Whether an entry's place may be taken: nothing, half an entry, or one of a past generation.

    Args:
        data: Of the entry.
        generations: Of each segment, now.
    """
    *_, segment, generation, own = ENTRY.unpack(data)
    is_current = segment < len(generations) and generations[segment] == generation
    return not is_current or own != zlib.crc32(data[:-4])


def _prime_up_to(most: int) -> int:
    while any(most % divisor == 0 for divisor in range(2, math.isqrt(most) + 1)):
        most -= 1
    return most


def _places(count: int) -> range:
    return range(SEGMENTS_AT, SEGMENTS_AT + SEGMENT.size * count, SEGMENT.size)


def _aligned(size: int, alignment: int) -> int:
    return size + -size % alignment
