"""How the arena's file is divided, and what lies where in its index. Pure.

``header | segments | counters | index | heap``. The heap is divided into segments, which are
filled from their beginning. Those of an LRU cache are emptied as a whole: a segment's *generation*
grows then, and entries of older generations are void. Without eviction there are two: records that
stay for ever, and the *window* of records that pass through, a ring whose generation is its lap.

An index entry is written by one process at a time and read by all without a lock, so it ends with a
checksum of itself: an entry that is half written counts as none.
"""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from dataclasses import dataclass
from typing import Literal

Eviction = Literal["never", "lru"]

#: Magic, bytes of an entry, segments, size, entries, checksum, 0.
HEADER = struct.Struct("<8sIIQQQQ")
MAGIC = b"aiacc-a3"
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
#: Share of a cache that never evicts which is always the window.
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
        return aligned(SEGMENTS_AT + SEGMENT.size * len(self.segments), _PAGE)

    @property
    def index_at(self) -> int:
        """Where the index begins."""
        return self.rows_at + ROWS * ROW_BYTES

    @property
    def heap_at(self) -> int:
        """Where records begin; everything before is always in memory."""
        return aligned(self.index_at + self.entries * ENTRY.size, _PAGE)

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
        count, checksum = len(self.segments), self._checksum
        head = HEADER.pack(MAGIC, ENTRY.size, count, self.size, self.entries, checksum, 0)
        table = b"".join(one.pack() for one in self.empty_segments())
        return head.ljust(SEGMENTS_AT, b"\0") + table

    def empty_segments(self) -> list[Segment]:
        """The table of an arena without records."""
        table = [Segment(begin, end, begin, 1, 0) for begin, end in self.segments]
        if len(table) == 2:  # the window begins with a lap, at a place that depends on the rest
            table[1] = Segment(table[1].begin, table[1].end, table[1].end, 1, 0)
        return table

    @staticmethod
    def unpack(data: bytes) -> Layout:
        """Inverse of `pack`. Raises ValueError for what another version has written, or damaged."""
        if len(data) < SEGMENTS_AT:
            raise ValueError(f"an arena of {len(data)} bytes")
        magic, entry, count, size, entries, checksum, _ = HEADER.unpack_from(data)
        if magic != MAGIC or entry != ENTRY.size:
            raise ValueError("an arena of another version")
        count = min(count, (len(data) - SEGMENTS_AT) // SEGMENT.size)
        table = [Segment.unpack(data[at : at + SEGMENT.size]) for at in _places(count)]
        found = Layout(size, entries, tuple((one.begin, one.end) for one in table))
        if checksum != found._checksum:
            raise ValueError("an arena whose header is damaged")
        return found

    @property
    def _checksum(self) -> int:
        return zlib.crc32(repr(self).encode())


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
    count = 1 + _LRU_SEGMENTS if evict == "lru" else 2
    empty = Layout(0, entries, ((0, 0),) * count)
    begin = empty.heap_at
    room = max(0, size - begin) // ALIGNMENT * ALIGNMENT
    if evict == "lru":
        each = room // _LRU_SEGMENTS // ALIGNMENT * ALIGNMENT
        places = [begin + number * each for number in range(_LRU_SEGMENTS + 1)]
        segments = ((begin, begin), *itertools.pairwise(places))
    else:
        window = aligned(room // _WINDOW_SHARE, ALIGNMENT)
        segments = ((begin, begin + room - window), (begin, begin + room))
    return Layout(max(size, begin), entries, segments)


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


def _prime_up_to(most: int) -> int:
    while any(most % divisor == 0 for divisor in range(2, math.isqrt(most) + 1)):
        most -= 1
    return most


def _places(count: int) -> range:
    return range(SEGMENTS_AT, SEGMENTS_AT + SEGMENT.size * count, SEGMENT.size)


def aligned(size: int, alignment: int) -> int:
    """The next multiple of ``alignment``."""
    return size + -size % alignment
