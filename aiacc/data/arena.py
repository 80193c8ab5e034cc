"""Memory of the node: records in one file in memory that all workers and local ranks map.

Reading takes no lock. One process at a time appends, under an fcntl lock that the kernel takes
back when the process dies. What it had not finished then is void: the entry of the index is
written last.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from aiacc.data import admission
from aiacc.data import layout as geometry
from aiacc.data.arena_file import PREFIX, ArenaFile, attach, private, sweep
from aiacc.data.layout import ENTRY, Entry, Eviction, Layout, Segment
from aiacc.data.record import CorruptRecordError
from aiacc.data.sizes import is_backed, leaves_room

#: Bytes of the file that stand for locks, far behind its end.
_APPENDING = 1 << 60
_ROWS = _APPENDING + 1
_CLAIMS = 1 << 61
_VOID = bytes(ENTRY.size)
_COUNTER = struct.Struct("<Q")
#: Locks are tried again after so long: waiting for one in the kernel has no deadline.
_FIRST_NAP_S, _LONGEST_NAP_S = 0.0002, 0.02
#: Longer than anybody writes who is not paused; and for how long to wait after that.
_PATIENCE_S, _NEXT_PATIENCE_S = 5.0, 0.1
#: Longer than anybody counts; what is counted is lost then.
_COUNTING_S = 0.5
#: Of counters, for processes beyond those that have a row of their own.
_SHARED_ROW = geometry.ROWS - 1


class Arena:
    """One process's view of the node's memory.

    Threads: any. Processes: one that was forked goes on with its parent's view; one that was
    spawned makes its own with the same arguments.
    """

    def __init__(self, folder: Path | None, name: str, plan: Layout, evict: Eviction) -> None:
        """Use, or create, the arena ``name``; remove those that killed jobs have left.

        Args:
            folder: Where it is; None: nowhere, for this process and those that are forked of it.
            name: Of all who share it.
            plan: Its layout, if it is created; without a folder it has room for no record.
            evict: As that says.

        Raises:
            OSError: It cannot be created.
        """
        if folder is not None:
            sweep(folder)
        self._file: ArenaFile = (
            private(plan) if folder is None else attach(folder / f"{PREFIX}{name}", plan)
        )
        self._layout = self._file.layout
        self._evict = evict
        self._row = self._row_pid = 0
        self._has_given_up = False
        #: Why nothing more is admitted: memory itself is full. None while it is not.
        self.failure: OSError | None = None

    @property
    def path(self) -> Path:
        """Its file."""
        return self._file.path

    @property
    def used(self) -> int:
        """Bytes of records, but for those that pass through the window."""
        segments = self._segments()
        counted = segments if self._evict == "lru" else segments[:1]
        return sum(one.used - one.begin for one in counted)

    @property
    def window(self) -> int:
        """Bytes for records that pass through: more while few have come to stay."""
        stay, *moving = self._segments()
        if self._evict == "lru":
            return sum(one.end - one.begin for one in moving)
        return moving[0].end - admission.bottom(stay, moving[0])

    @property
    def largest(self) -> int:
        """Bytes of the largest record that stays, or may, in an empty arena."""
        places = self._layout.segments[1:] if self._evict == "lru" else self._layout.segments[:1]
        return max(end - begin for begin, end in places)

    def close(self) -> None:
        """End the use of it; the last user of all removes it."""
        self._file.release()

    def read(self, key: bytes) -> bytearray | None:
        """The record of a key, a copy; None if it is not there.

        Blocks: never.

        Raises:
            CorruptRecordError: It was there, and its checksum is wrong.
        """
        for _, entry in self._entries(key):
            if self._is_valid(entry):
                record = bytearray(
                    memoryview(self._file.map)[entry.begin : entry.begin + entry.size]
                )
                right = zlib.crc32(record) == entry.checksum
                if not self._is_valid(entry):  # emptied while it was read
                    return None
                if not right:
                    self.forget(key)
                    raise CorruptRecordError
                if self._evict == "lru":
                    self._touch(entry.segment)
                return record
        return None

    def __contains__(self, key: bytes) -> bool:
        return any(self._is_valid(entry) for _, entry in self._entries(key))

    def write(
        self,
        key: bytes,
        record: bytes | bytearray | memoryview,
        may_go: bool = False,
        may_stay: bool = True,
    ) -> bool:
        """Admit a record if there is room.

        Blocks: while others write.

        Args:
            key: Of 16 bytes.
            record: Whole record.
            may_go: Whether it gets a place in the window, if no other.
            may_stay: Whether it may have a place for ever.

        Returns:
            Whether the record is there now.
        """
        if self.failure is not None:
            return False
        checksum = zlib.crc32(record)
        with self._appending() as is_mine:
            if key in self or not is_mine:
                return key in self
            segments = self._segments()
            place = admission.admit(segments, len(record), self._evict, may_go, may_stay)
            number = self._free_entry(key, segments)
            if place is None or number is None:
                return False
            has_memory = is_backed(self._file.descriptor, place.begin, len(record))
            if not has_memory and not leaves_room(self._file.descriptor, len(record)):
                return False
            after = place.after
            if self._evict == "lru":
                after = replace(after, last_use=time.monotonic_ns())
            # Before its bytes: those who read what lies there must see that it is void.
            self._put(place.segment, after)
            if not self._store(place.begin, record):
                return False
            entry = Entry(
                key,
                place.begin,
                len(record),
                checksum,
                place.segment,
                after.generation,
            )
            at = self._layout.entry_at(number)
            self._file.map[at : at + ENTRY.size] = entry.pack()
            return True

    def forget(self, key: bytes) -> None:
        """Let a record be absent. Its place stays occupied."""
        with self._appending() as is_mine:
            for number, _ in self._entries(key):
                if is_mine:
                    at = self._layout.entry_at(number)
                    # Not all zeros, which would end the search for entries behind it.
                    self._file.map[at : at + ENTRY.size] = b"\xff" * ENTRY.size

    def count(self, counter: int, amount: int) -> None:
        """Add to one of the 32 counters of the node."""
        with self._file.counting:
            row = self._own_row()
            if row == _SHARED_ROW and not self._lock(_ROWS + row, _COUNTING_S):
                return
            at = self._layout.rows_at + row * geometry.ROW_BYTES + counter * _COUNTER.size
            value = _COUNTER.unpack_from(self._file.map, at)[0] + amount
            _COUNTER.pack_into(self._file.map, at, value % (1 << 64))
            if row == _SHARED_ROW:
                fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, _ROWS + row)

    def counters(self) -> list[int]:
        """Sums over all processes that have ever counted, the dead ones too."""
        begin = self._layout.rows_at
        table = self._file.map[begin : begin + geometry.ROWS * geometry.ROW_BYTES]
        width = geometry.ROW_BYTES // _COUNTER.size
        numbers = struct.unpack(f"<{geometry.ROWS * width}Q", table)
        return [sum(numbers[column::width]) for column in range(width)]

    @contextmanager
    def claim(self, key: bytes, patience_s: float) -> Iterator[bool]:
        """Be the only process of the node that fetches a record, as far as that goes.

        The context is whether nobody else was at it. Threads of one process do not exclude each
        other.
        Blocks: until no other process has the claim, ``patience_s`` at most; then it goes without.
        """
        byte = _CLAIMS + int.from_bytes(key[:7], "little")
        is_free = is_mine = self._try_lock(byte)
        if not is_free:
            is_mine = self._lock(byte, patience_s)
        try:
            yield is_free
        finally:
            if is_mine:
                fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, byte)

    @contextmanager
    def _appending(self) -> Iterator[bool]:
        """Be the one who changes the index; False if the one who does has stopped for long."""
        with self._file.mutex:
            is_mine = self._lock(
                _APPENDING, _NEXT_PATIENCE_S if self._has_given_up else _PATIENCE_S
            )
            self._has_given_up = not is_mine
            try:
                yield is_mine
            finally:
                if is_mine:
                    fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, _APPENDING)

    def _lock(self, byte: int, patience_s: float) -> bool:
        deadline, nap = time.monotonic() + patience_s, _FIRST_NAP_S
        while not (is_mine := self._try_lock(byte)) and time.monotonic() < deadline:
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_S)
        return is_mine

    def _try_lock(self, byte: int) -> bool:
        try:
            fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _own_row(self) -> int:
        """A row of counters which nobody else who lives has; the last one is for all others."""
        if self._row_pid != os.getpid():
            self._row_pid = os.getpid()
            rows = (row for row in range(_SHARED_ROW) if self._try_lock(_ROWS + row))
            self._row = next(rows, _SHARED_ROW)
        return self._row

    def _entries(self, key: bytes) -> Iterator[tuple[int, Entry]]:
        """What the index has of a key, up to the first entry never used."""
        for number in self._layout.probes(key):
            at = self._layout.entry_at(number)
            data = self._file.map[at : at + ENTRY.size]
            if data == _VOID:
                return
            if data.startswith(key) and (entry := Entry.unpack(data)) is not None:
                yield number, entry

    def _free_entry(self, key: bytes, segments: Sequence[Segment]) -> int | None:
        """An entry that was never used, or is void; None if all that the key may have are taken."""
        for number in self._layout.probes(key):
            at = self._layout.entry_at(number)
            if admission.is_free(self._file.map[at : at + ENTRY.size], segments, self._evict):
                return number
        return None

    def _is_valid(self, entry: Entry) -> bool:
        if entry.segment >= len(self._layout.segments):
            return False
        begin, end = self._layout.segments[entry.segment]
        if not (begin <= entry.begin and entry.begin + entry.size <= end):
            return False
        segment = self._segment(entry.segment)
        if self._evict == "never" and entry.segment == 1:
            place = entry.begin, entry.generation
            return admission.is_in_window(*place, self._segment(0), segment)
        return segment.generation == entry.generation

    def _segment(self, number: int) -> Segment:
        at = self._layout.segment_at(number)
        found = Segment.unpack(self._file.map[at : at + geometry.SEGMENT.size])
        begin, end = self._layout.segments[number]  # does not change, so it is not read again
        used = found.used if begin <= found.used <= end else end
        generation = found.generation % (1 << 32)  # as entries have it
        return Segment(begin, end, used, generation, found.last_use)

    def _segments(self) -> list[Segment]:
        return [self._segment(number) for number in range(len(self._layout.segments))]

    def _put(self, number: int, segment: Segment) -> None:
        at = self._layout.segment_at(number)
        self._file.map[at : at + geometry.SEGMENT.size] = segment.pack()

    def _touch(self, number: int) -> None:
        at = self._layout.segment_at(number) + geometry.SEGMENT.size - geometry.LAST_USE.size
        geometry.LAST_USE.pack_into(self._file.map, at, time.monotonic_ns())

    def _store(self, at: int, record: bytes | bytearray | memoryview) -> bool:
        view = memoryview(record)
        try:
            while view:
                written = os.pwrite(self._file.descriptor, view, at)
                view, at = view[written:], at + written
        except OSError as error:  # memory is full: of the machine, or what this user may have
            self.failure = error
            return False
        return True
