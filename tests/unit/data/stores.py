"""The two tiers of the store as one kind of thing, other processes, and what goes wrong."""

import contextlib
import errno
import hashlib
import mmap
import multiprocessing
import os
import random
import signal
from unittest.mock import Mock

from aiacc.data.account import Account, on_disk
from aiacc.data.arena import Arena
from aiacc.data.arena_file import PREFIX
from aiacc.data.disk import Disk
from aiacc.data.layout import Entry, Segment, plan

FORK = multiprocessing.get_context("fork")
#: Names of data sets.
MINE, OTHER = "a" * 32, "b" * 32
#: Calls by which records are written, or a process dies.
CALLS = ("open", "write", "close", "replace", "pwrite", "ftruncate")


def key(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(4, "big"), digest_size=16).digest()


def content(number: int, size: int = 500) -> bytes:
    return random.Random(number).randbytes(size)


def open_arena(folder, size=10**6, samples=3000, evict="never"):
    return Arena(folder, "test", plan(size, samples, evict), evict)


def open_disk(folder, size=10**6, samples=None, evict="never"):
    return Disk(folder, MINE, size, evict)


#: By name of the tier.
TIERS = {"memory": open_arena, "disk": open_disk}


def records(folder):
    """Files of records, halves of these included."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".rec", ".tmp"))


def assert_counted(folder) -> None:
    """The account of a disk has the bytes of what is there, in which there are no halves."""
    assert all(path.suffix == ".rec" for path in records(folder))
    there = sum(on_disk(path.stat().st_size) for path in records(folder))
    assert Account(folder).used() == there


def bytes_in(folder) -> int:
    """That records and arenas occupy."""
    files = [*records(folder), *folder.glob(f"{PREFIX}*")]
    return sum(path.stat().st_blocks * 512 for path in files)


@contextlib.contextmanager
def mapped(path):
    """The bytes of a file, which can be changed."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        yield data


@contextlib.contextmanager
def failing(patch, *names, code=errno.ENOSPC, module=os):
    """Calls fail."""
    with patch.context() as while_it_lasts:
        for name in names:
            fails = Mock(side_effect=OSError(code, os.strerror(code)))
            while_it_lasts.setattr(module, name, fails)
        yield


def in_child(function, *arguments) -> int:
    """How a forked process ends that does this."""
    child = FORK.Process(target=function, args=arguments)
    child.start()
    child.join()
    return child.exitcode


def in_children(function, *all_arguments, context=FORK):
    """A process calls it with each of these arguments, all at a time, and none fails."""
    children = [context.Process(target=function, args=one) for one in all_arguments]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
        child.close()


@contextlib.contextmanager
def beside(function, *arguments):
    """A forked process, once it has called the first argument of ``function``; go on at the end.

    ``function(ready, go_on, *arguments)`` has two events.
    """
    ready, go_on = FORK.Event(), FORK.Event()
    child = FORK.Process(target=function, args=(ready, go_on, *arguments))
    child.start()
    assert ready.wait(60)
    try:
        yield child
    finally:
        if child.is_alive():  # a dead one, for which `set` would wait
            go_on.set()
        child.join()
        child.close()


def die_before(step: int, function) -> None:
    """Do it, and be killed before the so manieth store to a file, a map or a folder."""
    left = [step]

    def counted(real):
        def call(*arguments, **keywords):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **keywords)

        return call

    for owner, name in [*((os, name) for name in CALLS), (Segment, "pack"), (Entry, "pack")]:
        setattr(owner, name, counted(getattr(owner, name)))
    function()
    os._exit(0)
