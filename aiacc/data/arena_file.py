"""The arena's file: who creates it, who uses it, who removes it.

Everybody who uses the file holds a shared flock on it, which the kernel takes back however a
process ends. So a file on which somebody gets the exclusive one is used by nobody: it is what a
job has left that was killed, and is removed. A process has one descriptor per file, because
closing any descriptor of a file would drop all fcntl locks that the process has on it.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aiacc.data.layout import Layout
from aiacc.data.sizes import leaves_room

#: Longer than the index of an arena takes to be made, or a file to be removed.
_PATIENCE_S = 60.0
PREFIX = f"aiacc-data-{os.getuid()}-"
_temporary = itertools.count()


class ArenaFile:
    """An arena's file as this process uses it. Made by `attach` and `private` only."""

    def __init__(
        self, path: Path, descriptor: int, layout: Layout, memory: mmap.mmap | None = None
    ) -> None:
        self.path = path
        self.descriptor = descriptor
        self.layout = layout
        self.users = 1
        #: Between the threads of this process; fcntl locks are between processes.
        self.mutex = threading.Lock()
        #: Of counters, apart from `mutex`: who writes may wait for others while having that.
        self.counting = threading.Lock()
        self.pid = os.getpid()
        # What is mapped for writing is in memory already: index and counters. Records are written
        # by pwrite, which fails where a store to a page that does not fit into memory would kill.
        self.map = memory or mmap.mmap(descriptor, layout.size)

    def release(self) -> None:
        """End this use. The last user of all removes the file."""
        with _registry_mutex:
            self.users -= 1
            if self.users or self.pid != os.getpid():  # what was inherited by fork is the parent's
                return
            _registry.pop(self.path, None)
        with suppress(BufferError):  # a record is being read; the map goes with it
            self.map.close()
        _remove_if_unused(self.path, self.descriptor)
        os.close(self.descriptor)


_registry: dict[Path, ArenaFile] = {}
_registry_mutex = threading.Lock()


def attach(path: Path, layout: Layout) -> ArenaFile:
    """Use the arena at ``path``, which is created if nobody uses it.

    Blocks: while others create or remove it, for as long as it takes to clear its index.

    Raises:
        OSError: There is no such folder, no right to write, or no memory for the index; somebody
            who removes it has stopped.
    """
    path = path.absolute()
    deadline = time.monotonic() + _PATIENCE_S
    with _registry_mutex:
        known = _registry.get(path)
        if known is not None:
            known.users += 1
            return known
        while True:
            file = _join(path)
            if file is None:
                with _turn(path.parent):
                    file = _join(path) or _create(path, layout)
            if file is not None:
                _registry[path] = file
                return file
            if time.monotonic() > deadline:
                raise OSError(f"another process has been removing {path} for long")
            time.sleep(0.001)  # somebody removes it at this moment, or made it just now


def private(layout: Layout) -> ArenaFile:
    """An arena without a file: of this process, and those that are forked of it.

    It is for counters: what is written by its descriptor, which is there for locks, is not in it.
    """
    memory = mmap.mmap(-1, layout.size)
    head = layout.pack()
    memory[: len(head)] = head
    path = Path(os.devnull, str(next(_temporary)))  # which is nowhere
    file = ArenaFile(path, os.memfd_create("aiacc-data"), layout, memory)
    with _registry_mutex:
        _registry[path] = file
    return file


def sweep(folder: Path) -> list[Path]:
    """Remove arenas and halves of arenas that nobody uses; returns which."""
    removed = []
    for path in sorted(folder.glob(f"{PREFIX}*")):
        with _registry_mutex:
            if path.absolute() in _registry:
                continue
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if _remove_if_unused(path, descriptor):
                        removed.append(path)
                finally:
                    os.close(descriptor)
    return removed


def _join(path: Path) -> ArenaFile | None:
    """Use what others use; None if there is no such thing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        if (owner := os.fstat(descriptor).st_uid) != os.geteuid():
            raise OSError(f"{path} belongs to user {owner} (expected {os.geteuid()}); remove it")
        is_used = not _remove_if_unused(path, descriptor)
        if not is_used or not try_lock(descriptor, fcntl.LOCK_SH) or not is_at(path, descriptor):
            return None
        layout = Layout.unpack(os.pread(descriptor, 1 << 16, 0))
        file = ArenaFile(path, descriptor, layout)
        descriptor = -1
        return file
    except ValueError as error:
        raise OSError(f"{path} is used by a job with {error}") from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Be the only one who makes an arena in a folder, by a lock on the folder itself.

    Else all ranks of a node, which come at the same time, would each make an index, and all but one
    in vain: together as large as the memory of the cache. Who waits for long goes on without.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not try_lock(descriptor, fcntl.LOCK_EX) and time.monotonic() < deadline:
            time.sleep(0.001)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # also of a process forked meanwhile
        os.close(descriptor)


def _create(path: Path, layout: Layout) -> ArenaFile | None:
    """Make the file under another name, so that it is whole when it can be seen."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{next(_temporary)}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600)
    try:
        if not try_lock(descriptor, fcntl.LOCK_SH):  # others sweep it away
            return None
        if layout.size > layout.heap_at and not leaves_room(descriptor, layout.heap_at):
            raise OSError(errno.ENOSPC, "the index of a cache would take what others need", path)
        os.posix_fallocate(descriptor, 0, layout.heap_at)
        os.ftruncate(descriptor, layout.size)
        os.pwrite(descriptor, layout.pack(), 0)
        try:
            os.link(temporary, path)
        except (FileExistsError, FileNotFoundError):  # others were first, or have swept it away
            return None
        file = ArenaFile(path, descriptor, layout)
        descriptor = -1
        return file
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
        if descriptor >= 0:
            os.close(descriptor)


def _remove_if_unused(path: Path, descriptor: int) -> bool:
    """Remove the file if nobody else holds a lock on it. The caller's own is lost."""
    if not try_lock(descriptor, fcntl.LOCK_EX):
        return False
    if is_at(path, descriptor):
        path.unlink()
    return True


def try_lock(descriptor: int, kind: int) -> bool:
    """Lock a file as ``fcntl.flock`` does; False if another holder keeps it out. Never blocks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_at(path: Path, descriptor: int) -> bool:
    """Whether the file is still the one that has this name."""
    mine = os.fstat(descriptor)
    try:
        named = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (mine.st_dev, mine.st_ino) == (named.st_dev, named.st_ino)


def _after_fork() -> None:
    """Free the locks that threads of the parent held: they are not in the child."""
    global _registry_mutex
    _registry_mutex = threading.Lock()
    for file in _registry.values():
        file.mutex, file.counting = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
