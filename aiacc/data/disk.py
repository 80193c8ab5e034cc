"""Records on a local disk: one file each, which is whole or not there."""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from aiacc.data.account import FOLDER, SUFFIX, Account, BusyError, on_disk, records_of
from aiacc.data.layout import Eviction
from aiacc.data.record import CorruptRecordError
from aiacc.data.sizes import leaves_room

_HEADER = struct.Struct("<8s16sQI")
_MAGIC = b"aiacc-d1"
#: Share of the disk that is emptied at a time when it is full.
_AT_A_TIME = 32
_temporary = itertools.count()


def oldest(files: Iterable[tuple[float, int, str]], needed: int) -> list[tuple[str, int]]:
    """Which files to remove so that ``needed`` bytes become free. Pure.

    Args:
        files: When each was used last, how many bytes it occupies, its path.
        needed: Bytes.

    Returns:
        Paths and bytes, those used least recently first.
    """
    chosen = []
    for _, size, path in sorted(files):
        if needed <= 0:
            break
        chosen.append((path, size))
        needed -= size
    return chosen


def _head(key: bytes, size: int, checksum: int) -> bytes:
    return _HEADER.pack(_MAGIC, key, max(0, size), checksum)


class Disk:
    """The records of one dataset in a folder.

    Threads and processes: any, also of other jobs. A record is written to a temporary file, which
    is renamed; what a reader finds is checked by its checksum, so that it does not matter what a
    machine that lost its power has kept of it.
    """

    def __init__(
        self, folder: Path, name: str, capacity: int, evict: Eviction, *, sync: bool = False
    ) -> None:
        """Use the set ``name`` of a folder. Never fails: see `failure`.

        Args:
            folder: Any; records go to ``aiacc-cache`` in it.
            name: The dataset's fingerprint.
            capacity: Bytes of all datasets of the folder.
            evict: "never": what finds no room is refused; "lru": the least recently used go.
            sync: Whether a record is on the disk, and not in the machine's memory, before it
                counts.
        """
        self._place = folder / FOLDER / name
        self._name = name
        self._capacity = capacity
        self._evict = evict
        self._sync = sync
        self._descriptor = -1
        #: Why nothing is written any more; what is there is still read. None: all is well.
        self.failure: OSError | None = None
        self._account = Account(folder)
        try:
            self._descriptor = self._account.enter(name)
        except OSError as error:
            self.failure = error

    def close(self) -> None:
        """End the use of the folder. What is in it stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, key: bytes) -> bytearray | None:
        """The record of a key; None if it is not there, or cannot be read.

        Raises:
            CorruptRecordError: It was there, and is not what was written. It has been removed.
        """
        path = self._path(key)
        try:
            # Neither waiting for who writes to a pipe nor reading what a link points to.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
            with os.fdopen(descriptor, "rb", buffering=0) as file:
                size = os.fstat(descriptor).st_size
                head = file.read(_HEADER.size)
                # No memory for a file that has grown.
                is_whole = head[:-4] == _head(key, size - _HEADER.size, 0)[:-4]
                record = bytearray(size - _HEADER.size if is_whole else 0)
                view = memoryview(record)
                while view and (count := file.readinto(view)):
                    view = view[count:]
        except OSError:
            return None
        if not is_whole or head != _head(key, len(record), zlib.crc32(record)):
            self._remove(path, on_disk(size))
            raise CorruptRecordError
        if self._evict == "lru":
            with suppress(OSError):
                os.utime(path)
        return record

    def __contains__(self, key: bytes) -> bool:
        try:
            return self._path(key).exists()
        except OSError:  # where it may not be looked at
            return False

    def write(self, key: bytes, record: bytes | bytearray | memoryview) -> bool:
        """Keep a record if there is room; returns whether it is there now."""
        if self.failure is not None:
            return False
        path = self._path(key)
        size = on_disk(_HEADER.size + len(record))
        try:
            if path.exists():
                return True
            if not self._reserve(size):
                return False
            try:
                head = _head(key, len(record), zlib.crc32(record))
                self._store(path, head, record, size)
            except BaseException:
                self._account.release(self._name, size)
                raise
        except BusyError:  # a process is paused, and will go on
            return False
        except OSError as error:  # no room, no right, no disk
            self.failure = error
            return False
        return True

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._place / name[:2] / f"{name[2:]}{SUFFIX}"

    def _reserve(self, size: int) -> bool:
        missing = self._missing(size)
        if missing and self._evict == "lru" and size <= self._capacity:
            files = []
            for file in records_of(self._place):
                with suppress(OSError):
                    found = file.stat()
                    files.append((found.st_mtime, on_disk(found.st_size), file.path))
            for path, bytes_there in oldest(files, max(missing, self._capacity // _AT_A_TIME)):
                self._remove(Path(path), bytes_there)
            missing = self._missing(size)
        return not missing

    def _missing(self, size: int) -> int:
        """Bytes for which there is no room; 0 if they are reserved now.

        A folder may be in memory, in which others need some.
        """
        missing = self._account.reserve(self._name, size, self._capacity)
        if not missing and not leaves_room(self._descriptor, size):
            self._account.release(self._name, size)
            return size
        return missing

    def _remove(self, path: Path, size: int) -> None:
        with suppress(OSError):
            path.unlink()
            self._account.release(self._name, size)

    def _store(
        self, path: Path, head: bytes, record: bytes | bytearray | memoryview, size: int
    ) -> None:
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_name(f".{path.stem}.{os.getpid()}-{next(_temporary)}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
            try:
                for part in (head, record):
                    view = memoryview(part)
                    while view:
                        view = view[os.write(descriptor, view) :]
                if self._sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self._account.name(self._name, size, temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
