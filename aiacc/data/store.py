"""The tiers of a node in their order: memory, disk, and whoever fetches."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiacc.data import layout
from aiacc.data.arena import Arena
from aiacc.data.disk import Disk
from aiacc.data.layout import Eviction
from aiacc.data.record import CorruptRecordError
from aiacc.data.sizes import left_free, memory_there_is, most_memory, room_there_is
from aiacc.data.statistics import Statistics, counter_of, from_counters

#: A reader that waits for another process which fetches the same sample gives up after so long.
_PATIENCE_S = 60.0
_IN = {"disk": "on disk", "memory": "in memory"}
_REMEDIES = {
    "disk": "Make room, or give the right to write",
    "memory": "Give less to memory=, or more to the file system (docker run --shm-size)",
}


@dataclass(frozen=True)
class Tiers:
    """Which tiers there are, and how large; equal on all processes that are to share them."""

    #: Folder in memory, and bytes.
    memory: tuple[Path, int]
    #: Folder on disk, and bytes; None: none.
    disk: tuple[Path, int] | None = None
    evict: Eviction = "never"
    #: Whether records are on the disk before they count.
    sync: bool = False
    #: How many samples there are; None: unknown.
    samples: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.evict not in ("never", "lru"):
            raise ValueError(f'evict={self.evict!r} (expected "never" or "lru")')


class Store:
    """Records of one dataset in the tiers of this node.

    Threads: any. Processes: one that was forked goes on with it, one that was spawned gets it by
    pickle, of which its tiers and its fingerprint are all.
    """

    def __init__(self, fingerprint: str, tiers: Tiers) -> None:
        """Open the tiers. Those that cannot be opened are done without, with a warning."""
        self._fingerprint = fingerprint
        self._tiers = tiers
        self._told: set[str] = set()
        self._arena = self._open_arena()
        self._disk = None if tiers.disk is None else self._open_disk(*tiers.disk)
        self._closing = weakref.finalize(self, _close, self._arena, self._disk)
        self._counted: set[str] = set()
        self._forget_threads()
        _stores.add(self)
        self._tell_of_failures()

    def __reduce__(self) -> Any:
        return Store, (self._fingerprint, self._tiers)

    def close(self) -> None:
        """End the use of the tiers. The node's last user removes what is in memory."""
        self._closing()

    @property
    def window(self) -> int:
        """Bytes of memory for records that are fetched ahead and do not stay."""
        return self._arena.window

    @property
    def takes_ahead(self) -> bool:
        """Whether any tier takes records that are fetched ahead."""
        return self.window > 0 or self._disk is not None

    def statistics(self) -> Statistics:
        """What all processes of the node have counted since the first of them came."""
        self._check_open()
        return from_counters(self._arena.counters())

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a field of the statistics."""
        self._arena.count(counter_of(name), amount)

    def has_counted(self, name: str, most: int) -> bool:
        """Whether the node has counted so many. Once it has, nobody is asked any more."""
        if name not in self._counted and getattr(self.statistics(), name) >= most:
            self._counted.add(name)
        return name in self._counted

    def __contains__(self, key: bytes) -> bool:
        return key in self._arena or (self._disk is not None and key in self._disk)

    def in_memory(self, key: bytes) -> bool:
        """Whether it is in the nearest tier."""
        return key in self._arena

    def obtain(self, key: bytes, fetch: Callable[[], bytes], stays: bool = True) -> bytearray:
        """The record of a key, from the nearest place that has it; a copy.

        Blocks: while it is fetched, by this process or by another one of the node.

        Args:
            key: Of 16 bytes.
            fetch: Makes the record if no tier has it. Called by one process of the node at a time.
            stays: Whether this node keeps it; it only passes through memory if not.

        Raises:
            Exception: What ``fetch`` raised.
        """
        found = self.from_memory(key, False)
        if found is None:
            with self._stall():
                found = self._absent(key, fetch, False, stays)
                if found is None:  # a thread of this process was bringing it, and left it to others
                    found = bytearray(fetch())
        return found

    def find(self, key: bytes, lent: bool = False) -> bytearray | None:
        """The record of a key, a copy; None if no tier has it. Blocks: never for others.

        Args:
            key: Of 16 bytes.
            lent: Whether it is for another node, and not counted as given to a reader here.
        """
        return self.from_memory(key, lent) or self._from_disk(key, lent)

    def bring(self, key: bytes, fetch: Callable[[], bytes], stays: bool = True) -> None:
        """Get a record to the nearest tier that has room, for others who will read it.

        Where somebody fetches it at this moment, nothing is done.
        Blocks: while it is fetched.

        Args:
            key: Of 16 bytes.
            fetch: Makes the record if no tier has it.
            stays: Whether this node keeps it; it only passes through memory if not.

        Raises:
            Exception: What ``fetch`` raised.
        """
        if key not in self._arena:
            self._absent(key, fetch, True, stays)

    def receive(self, key: bytes, record: bytes | bytearray | memoryview, stays: bool) -> bool:
        """Take a record from another node; returns whether there was room.

        Args:
            key: Of 16 bytes.
            record: Whole record.
            stays: Whether this node keeps it from now on; it is there until it is read, more or
                less, if not.
        """
        self.count("received")
        self.count("received_bytes", len(record))
        return self._write(key, record, False, stays)

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed it."""
        return self._closing.alive

    def _check_open(self) -> None:
        if not self.is_open:
            raise ValueError("this cache was closed (expected an open one); make another of it")

    def from_memory(self, key: bytes, lent: bool = False) -> bytearray | None:
        """The same from the nearest tier only."""
        self._check_open()
        return self._hit("memory", self._arena.read, key, lent)

    def _from_disk(self, key: bytes, ahead: bool, stays: bool = True) -> bytearray | None:
        if self._disk is None:
            return None
        found = self._hit("disk", self._disk.read, key, ahead)
        if found is not None:
            self._arena.write(key, found, ahead or not stays, stays)
        return found

    def _write(
        self, key: bytes, record: bytes | bytearray | memoryview, may_go: bool, stays: bool
    ) -> bool:
        """Whether a record has found a place; it is counted as refused if not."""
        if stays:
            is_on_disk = self._disk is not None and self._disk.write(key, record)
            is_there = self._arena.write(key, record, may_go) or is_on_disk
        else:
            is_there = self._arena.write(key, record, may_go=True, may_stay=False)
        if not is_there:
            self.count("refused")
            self._tell_of_size(len(record))
        self._tell_of_failures()
        return is_there

    def _hit(
        self, tier: str, read: Callable[[bytes], bytearray | None], key: bytes, ahead: bool
    ) -> bytearray | None:
        try:
            found = read(key)
        except CorruptRecordError:
            self.count("corrupt")
            return None
        if found is not None and not ahead:
            self.count(f"{tier}_hits")
            self.count(f"{tier}_bytes", len(found))
        return found

    def _absent(
        self, key: bytes, fetch: Callable[[], bytes], ahead: bool, stays: bool
    ) -> bytearray | None:
        """A record that is not in memory: brought there by one thread of one process."""
        with self._mutex:
            coming = self._fetching.get(key)
            is_mine = coming is None
            if coming is None:
                coming = self._fetching[key] = Future()
        if not is_mine:
            result = coming.result()
            if result and not ahead:
                self.count("memory_hits")
                self.count("memory_bytes", len(result))
            return bytearray(result) if result else None
        try:
            found = self._from_disk(key, ahead, stays)
            if found is None:
                with self._arena.claim(key, _PATIENCE_S) as is_free:
                    # Somebody else may have fetched it meanwhile.
                    found = self.from_memory(key, ahead) or self._from_disk(key, ahead, stays)
                    if found is None and (is_free or not ahead):
                        found = bytearray(self._fetched(key, fetch, ahead, stays))
        except BaseException as error:
            coming.set_exception(error)
            raise
        else:
            coming.set_result(bytes(found or b""))
            return found
        finally:
            with self._mutex:
                del self._fetching[key]

    def _fetched(self, key: bytes, fetch: Callable[[], bytes], ahead: bool, stays: bool) -> bytes:
        data = fetch()
        self.count("fetched")
        self.count("fetched_bytes", len(data))
        if not ahead:
            self.count("awaited")
        self._write(key, data, ahead, stays)
        return data

    def _tell_of_failures(self) -> None:
        """Say once on this node that a tier takes nothing more."""
        for tier, place in (("disk", self._disk), ("memory", self._arena)):
            if place is None or place.failure is None or tier in self._told:
                continue
            self._told.add(tier)
            self.count(f"{tier}_failures")
            if getattr(self.statistics(), f"{tier}_failures") == 1:
                warnings.warn(
                    f"nothing more is kept {_IN[tier]}: {place.failure}; what is there is still "
                    f"read. {_REMEDIES[tier]}, and start again",
                    stacklevel=3,
                )

    def _tell_of_size(self, size: int) -> None:
        """Say if a record, the first on this node that found no place, can never have one."""
        given, largest = self._tiers.memory[1], self._arena.largest
        if not given or size <= largest or "size" in self._told:
            return
        self._told.add("size")
        if self.statistics().refused == 1:
            warnings.warn(
                f"a sample of {size} bytes will be fetched each time: with evict="
                f"{self._tiers.evict!r}, memory={given} takes records of at most {largest} bytes "
                '(expected room for whole samples); give more to memory=, in bytes or as "8GB"',
                stacklevel=3,
            )

    def _open_arena(self) -> Arena:
        folder, size = self._tiers.memory
        evict = self._tiers.evict
        there_is, (room, is_shared) = memory_there_is(), room_there_is(folder)
        most = most_memory(there_is, room, is_shared)
        if size > most:
            given, size = size, int(most)
            limit = (
                f"this machine, container or job has {there_is} (expected at most three quarters "
                "of them), and processes would be killed for the rest; give less to memory=, and "
                "more to disk="
            )
            if most < most_memory(there_is, 0, is_shared):
                limit = (
                    f"{folder} has {room} (expected {room - size} of them left to others, such as "
                    "DataLoader workers); give more to the file system (docker run --shm-size), "
                    "or less to memory=, and more to disk="
                )
            warnings.warn(f"memory={given} is cut to {size} bytes: {limit}", stacklevel=4)
            self._told |= {"size"} if not size else set()
        plan = layout.plan(size, self._tiers.samples, evict)
        name = f"{self._fingerprint}-{size}-{evict}"
        try:
            return Arena(folder, name, plan, evict)
        except OSError as error:
            warnings.warn(
                f"no memory of the node is used: {error}; give memory= a folder in memory that "
                "this user may write to, and no more bytes than there are",
                stacklevel=4,
            )
            self._told.add("size")
            nothing = layout.plan(0, 0, evict)
            try:
                return Arena(Path(tempfile.gettempdir()), name, nothing, evict)
            except OSError:  # nor any other file
                return Arena(None, name, nothing, evict)

    def _open_disk(self, folder: Path, size: int) -> Disk:
        with suppress(OSError):  # of which the disk tells
            folder.mkdir(parents=True, exist_ok=True)
        room, is_shared = room_there_is(folder)
        most = room - left_free(room)
        if is_shared and size > most:
            warnings.warn(
                f"disk={size} is cut to {most} bytes: {folder} is in memory, and has {room} "
                f"(expected {room - most} of them left to others, such as DataLoader workers); "
                "give a folder on a disk",
                stacklevel=4,
            )
            size = most
        return Disk(folder, self._fingerprint, size, self._tiers.evict, sync=self._tiers.sync)

    def _forget_threads(self) -> None:
        self._mutex = threading.Lock()
        self._fetching: dict[bytes, Future[bytes]] = {}

    @contextmanager
    def _stall(self) -> Iterator[None]:
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self.count("stall_ns", time.monotonic_ns() - begin)


_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    """Threads of the process that has forked this one are not here, and bring nothing."""
    for store in _stores:
        store._forget_threads()


os.register_at_fork(after_in_child=_after_fork)


def _close(arena: Arena, disk: Disk | None) -> None:
    arena.close()
    if disk is not None:
        disk.close()
