"""Fetching ahead of a sampler: a process beside the rank, with more requests than workers.

The rank tells it which samples are coming, and how far the sampler is. It brings them to the
node's memory. Nobody waits for it, and nobody notices when it is gone: who finds no sample fetches
it.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

#: Which sample, and how many had been given by the sampler when it was announced, and at its turn.
_MESSAGE = struct.Struct("<qqq")
#: Share of the window that is filled ahead: what is read next must not be emptied.
_FILLED = 0.75


def how_far(wanted: int, window: int, mean_bytes: float) -> int:
    """How many samples to fetch ahead, so that they have a place until they are read. Pure.

    Args:
        wanted: As many as the user wants.
        window: Bytes for samples fetched ahead.
        mean_bytes: Of a record; 0 if not known yet.
    """
    if not mean_bytes or not window:  # nothing is known; or there is nothing but a disk
        return wanted
    return min(wanted, int(_FILLED * window / mean_bytes))


def how_far_together(
    wanted: int, window: int, mean_bytes: float, ranks: int, share: float, unread: int
) -> int:
    """The same where the ranks of a node share the window, at least 1. Pure.

    Args:
        wanted: As many as the user wants, of each rank.
        window: Bytes for samples that pass through.
        mean_bytes: Of a record; 0 if not known yet.
        ranks: Of the node.
        share: Of the samples, those that pass through the window.
        unread: Samples that the node's samplers have given, and nobody has read yet.
    """
    # All that is unread may be one rank's, and the others' samples lie between.
    return max(1, how_far(wanted + unread, window, mean_bytes * share * ranks) - unread)


class Fetcher:
    """The process, from the first announcement to `close` or the end of this one.

    Threads: one.
    """

    def __init__(self, bring: Callable[[int], object], requests: int, method: str | None) -> None:
        """Nothing is started yet.

        Args:
            bring: Gets a sample to where others find it; called in the other process.
            requests: How many samples at a time.
            method: How the process is started ("fork", "spawn"); None: multiprocessing's default.
        """
        self._bring = bring
        self._requests = requests
        self._method = method
        self._process: Any = None
        self._sender: Connection | None = None
        self._given = 0

    def through(self, indices: Iterable[int], count: int) -> Iterator[int]:
        """The same indices; each is announced ``count`` places before its turn, if that is any."""
        if not count:
            yield from indices
            return
        coming: deque[int] = deque()
        self.start()
        try:
            for index in indices:
                self.announce(index, len(coming))
                coming.append(index)
                if len(coming) > count:
                    self.skip(1)
                    yield coming.popleft()
            while coming:
                self.skip(1)
                yield coming.popleft()
        finally:  # what was announced in vain is past
            self.skip(len(coming))

    def announce(self, index: int, places: int) -> None:
        """Let a sample be fetched whose turn is after so many others, if there is a process."""
        if self._sender is not None:
            # It is gone, or stands still: then others fetch.
            with suppress(BlockingIOError, BrokenPipeError):
                message = _MESSAGE.pack(index, self._given, self._given + places)
                os.write(self._sender.fileno(), message)

    def skip(self, count: int) -> None:
        """Say that the turn of so many samples has come."""
        self._given += count

    def close(self) -> None:
        """End the process, whatever it is doing."""
        process, sender = self._process, self._sender
        self._process = self._sender = None
        if sender is not None:
            sender.close()
        if process is not None and process._parent_pid == os.getpid():
            process.kill()
            process.join()
            process.close()

    def start(self) -> None:
        """Start the process, unless it was before."""
        if self._process is not None:
            return
        context = multiprocessing.get_context(self._method)
        receiver, sender = context.Pipe(duplex=False)
        arguments = (receiver, sender, self._bring, self._requests)
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_work, args=arguments, daemon=True, name="aiacc ahead"
        )
        self._process.start()
        receiver.close()
        self._sender = sender
        os.set_blocking(sender.fileno(), False)


class AheadOf:
    """A sampler whose samples are fetched before their turn. See `CachedDataset.fetching_ahead`."""

    def __init__(
        self, fetcher: Fetcher, sampler: Iterable[int], how_far: Callable[[], int]
    ) -> None:
        self._fetcher = fetcher
        self._sampler = sampler
        self._how_far = how_far
        self._closing = weakref.finalize(self, fetcher.close)

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        return self.through(self._sampler)

    def through(self, indices: Iterable[int]) -> Iterator[int]:
        """The same for other indices."""
        return self._fetcher.through(indices, self._how_far())

    def close(self) -> None:
        """End the process that fetches."""
        self._closing()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the sampler's own, `set_epoch` for one."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)


def _work(
    receiver: Connection, sender: Connection, bring: Callable[[int], object], requests: int
) -> None:
    """The other process: threads that fetch what is announced, and not past yet."""
    sender.close()  # so that this process is told when its rank ends
    queue = _Queue()
    threads = [
        threading.Thread(target=_fetch, args=(queue, bring), daemon=True) for _ in range(requests)
    ]
    for thread in threads:
        thread.start()
    rest = b""
    while data := os.read(receiver.fileno(), _MESSAGE.size * 1024):
        rest += data
        whole = len(rest) // _MESSAGE.size * _MESSAGE.size
        for message in _MESSAGE.iter_unpack(rest[:whole]):
            queue.add(*message)
        rest = rest[whole:]


def _fetch(queue: _Queue, bring: Callable[[int], object]) -> None:
    while True:
        index = queue.next()
        with suppress(Exception):  # who reads the sample meets the error, and says so
            bring(index)


class _Queue:
    """Samples that are announced and whose turn has not come."""

    def __init__(self) -> None:
        self._coming: deque[tuple[int, int]] = deque()
        self._given = 0
        self._changed = threading.Condition()

    def add(self, index: int, given: int, turn: int) -> None:
        with self._changed:
            self._given = given
            self._coming.append((index, turn))
            self._changed.notify()

    def next(self) -> int:
        with self._changed:
            while True:
                while not self._coming:
                    self._changed.wait()
                index, turn = self._coming.popleft()
                if turn >= self._given:
                    return index
