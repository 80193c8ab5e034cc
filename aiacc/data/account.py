"""The folder on disk that caches share: which sets of records it has, and how many bytes these are.

``aiacc-cache/account`` is JSON and is changed under a flock of a descriptor of its own, so that
threads, forked processes and other jobs take their turns. Every set, the records of one dataset,
is a folder with a file ``lock``, on which its users hold a shared flock: a set on which somebody
gets the exclusive one is used by nobody. Nothing outside ``aiacc-cache`` is ever touched, and in
it nothing but folders of sets. What takes as long as a set has files, counting and removing them,
is done without the account, for which others wait.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from aiacc.data.arena_file import is_at, try_lock

FOLDER = "aiacc-cache"
VERSION = 1
LOCK = "lock"
SUFFIX = ".rec"
_SET = re.compile(r"[0-9a-f]{32}")
_BLOCK = 4096
#: Whoever has put a link into the folder does not get the file that it points to changed.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
#: Of sets that are being removed.
_GONE = ".gone"
_removed = itertools.count()
#: Longer than anybody has the account who is not paused; and for how long to wait after that.
_PATIENCE_S, _NEXT_PATIENCE_S = 5.0, 0.1
#: Longer than it takes to count the files of a set.
_COUNTING_S = 600.0
#: Between two looks whether a set has been counted.
_NAP_S = 0.01


class BusyError(OSError):
    """Another process has had what is waited for, for long; later it may be free."""


class OtherVersionError(OSError):
    """The folder is used by a job whose aiacc has another format."""


def on_disk(size: int) -> int:
    """Bytes that a file of ``size`` bytes occupies, its name included. Pure."""
    return size + -size % _BLOCK + 512


def sets_to_remove(sets: Mapping[str, int], ages: Mapping[str, float], needed: int) -> list[str]:
    """Whole sets that give ``needed`` bytes, those used least recently first. Pure.

    Args:
        sets: Bytes of each set.
        ages: When each set that nobody uses was used last.
        needed: Bytes that are missing.
    """
    chosen = []
    for name in sorted(ages, key=lambda name: (ages[name], name)):
        if needed <= 0:
            break
        chosen.append(name)
        needed -= sets.get(name, 0)
    return chosen


class Account:
    """What the caches of one folder know of each other.

    Threads and processes: any.
    """

    def __init__(self, folder: Path) -> None:
        """Know where it is; nothing is made or read."""
        self.folder = folder / FOLDER
        self._has_given_up = False

    def enter(self, name: str) -> int:
        """Become a user of a set; returns the descriptor that makes this process one.

        Who is alone in it counts its files anew, and removes halves that killed processes have
        left. Blocks: meanwhile, and while another one counts.

        Raises:
            OSError: Nobody can write there.
            BusyError: Another process has counted, or has had the account, for too long.
            OtherVersionError: A job uses the folder whose aiacc has another format.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._changed():
            pass
        self._sweep()
        place = self.folder / name
        deadline = time.monotonic() + _COUNTING_S
        while time.monotonic() < deadline:
            place.mkdir(exist_ok=True)
            _refuse_links(place)
            descriptor = os.open(place / LOCK, _FLAGS, 0o666)
            try:
                if self._is_entered(name, place, descriptor):
                    os.utime(descriptor)
                    found, descriptor = descriptor, -1
                    return found
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
            time.sleep(_NAP_S)
        raise BusyError(f"another process has counted the files of {place} for {_COUNTING_S:.0f} s")

    def _is_entered(self, name: str, place: Path, descriptor: int) -> bool:
        """Whether the lock of a set is this process's; not while another one counts."""
        with self._changed() as sets:  # nobody removes the set meanwhile
            if not is_at(place / LOCK, descriptor):  # it was removed a moment ago
                return False
            is_alone = try_lock(descriptor, fcntl.LOCK_EX)
            if not is_alone:
                if not try_lock(descriptor, fcntl.LOCK_SH):
                    return False
                if name not in sets:
                    sets[name] = _bytes_of(place)
        if is_alone:
            size = _tidy(place)
            with self._changed() as sets:
                sets[name] = size
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        return True

    def reserve(self, name: str, size: int, capacity: int) -> int:
        """Take ``size`` bytes for a set, if need be from sets that nobody uses.

        Returns:
            Bytes that are missing: 0 if they are taken now.
        """
        with self._changed() as sets:
            missing = sum(sets.values()) + size - capacity
            unused = []
            if missing > 0 and size <= capacity:
                unused = sets_to_remove(sets, self._unused(sets, name), missing)
            missing -= sum(self._set_aside(sets, other) for other in unused)
            if missing <= 0:
                sets[name] = sets.get(name, 0) + size
        if unused:
            self._sweep()
        return max(0, missing)

    def release(self, name: str, size: int) -> None:
        """Give bytes back."""
        with self._changed() as sets:
            sets[name] = max(0, sets.get(name, 0) - size)

    def name(self, name: str, size: int, temporary: Path, path: Path) -> None:
        """Give the file of ``size`` reserved bytes of a set its name.

        If another process has put the same record there meanwhile, the bytes are given back.
        """
        with self._changed() as sets:
            if path.exists():
                temporary.unlink()
                sets[name] = max(0, sets.get(name, 0) - size)
            else:
                os.replace(temporary, path)  # noqa: PTH105 - tests replace it

    def used(self) -> int:
        """Bytes of all sets."""
        with self._changed() as sets:
            return sum(sets.values())

    def _unused(self, sets: Mapping[str, int], mine: str) -> dict[str, float]:
        """When those sets were used last that nobody uses."""
        found = {}
        for name in sets:
            if name != mine:
                with suppress(OSError):
                    descriptor = os.open(self.folder / name / LOCK, _FLAGS & ~os.O_CREAT)
                    try:
                        if try_lock(descriptor, fcntl.LOCK_EX):
                            found[name] = os.fstat(descriptor).st_mtime
                    finally:
                        _unlock_and_close(descriptor)
        return found

    def _set_aside(self, sets: dict[str, int], name: str) -> int:
        """Let a set be none; nobody enters it meanwhile, for that needs the account.

        Returns:
            Its bytes, which `_sweep` makes free.
        """
        with suppress(OSError):
            aside = f".{name}-{os.getpid()}-{next(_removed)}{_GONE}"
            (self.folder / name).rename(self.folder / aside)
        return sets.pop(name)

    def _sweep(self) -> None:
        """Remove what was set aside, also by processes that were killed before they had done so."""
        for aside in self.folder.glob(f".*{_GONE}"):
            shutil.rmtree(aside, ignore_errors=True)

    @contextmanager
    def _changed(self) -> Iterator[dict[str, int]]:
        """The bytes of each set, to be changed by one at a time."""
        descriptor = os.open(self.folder / "account", _FLAGS, 0o666)
        try:
            patience_s, nap = _NEXT_PATIENCE_S if self._has_given_up else _PATIENCE_S, 0.0001
            deadline = time.monotonic() + patience_s
            while not try_lock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    self._has_given_up = True
                    raise BusyError(f"another process has had {self.folder}/account for long")
                time.sleep(nap)
                nap = min(2 * nap, 0.01)
            self._has_given_up = False
            before = os.pread(descriptor, 1 << 20, 0)
            sets = self._read(before)
            try:
                yield sets
            finally:
                after = json.dumps({"version": VERSION, "sets": sets}).encode()
                if after != before:
                    os.pwrite(descriptor, after, 0)
                    os.ftruncate(descriptor, len(after))
        finally:
            _unlock_and_close(descriptor)

    def _read(self, data: bytes) -> dict[str, int]:
        """The sets of an account; those that are there if it is none."""
        try:
            content = json.loads(data) if data else None
        except (ValueError, RecursionError):  # somebody was killed while writing it
            content = None
        if isinstance(content, dict) and content.get("version") == VERSION:
            sets = content.get("sets")
            if isinstance(sets, dict) and all(type(size) is int for size in sets.values()):
                return {name: size for name, size in sets.items() if _SET.fullmatch(name)}
        present = {path.name: 0 for path in self.folder.iterdir() if _SET.fullmatch(path.name)}
        if isinstance(content, dict) and content.get("version") != VERSION:
            unused = self._unused(present, "")
            if len(unused) < len(present):
                raise OtherVersionError(
                    f"{self.folder} is used by a job whose aiacc has format "
                    f"{content.get('version')!r} (expected {VERSION})"
                )
            for name in list(present):
                self._set_aside(present, name)
        return {name: _bytes_of(self.folder / name) for name in present}


def records_of(place: Path) -> Iterator[os.DirEntry[str]]:
    """The files of the records of a set."""
    with suppress(OSError), os.scandir(place) as folders:
        for folder in folders:
            if folder.is_dir(follow_symlinks=False):
                with suppress(OSError), os.scandir(folder) as files:
                    yield from (file for file in files if file.name.endswith(SUFFIX))


def _refuse_links(place: Path) -> None:
    """Raise OSError if a set, or a folder of it, is a link: what is removed there is another's."""
    paths = [place]
    with suppress(FileNotFoundError):  # removed at this moment
        paths += place.iterdir()
    for path in paths:
        if path.is_symlink():
            raise OSError(f"{path} is a symbolic link (expected a folder of a cache); remove it")


def _unlock_and_close(descriptor: int) -> None:
    """Unlock first: a child that was forked meanwhile has the descriptor, and the lock, too."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _bytes_of(place: Path) -> int:
    total = 0
    for file in records_of(place):
        with suppress(OSError):
            total += on_disk(file.stat().st_size)
    return total


def _tidy(place: Path) -> int:
    """Remove halves of records; returns the bytes of the others."""
    for half in place.glob("*/.*.tmp"):
        with suppress(OSError):
            half.unlink()
    return _bytes_of(place)
