"""Filling the tiers before training, with a bar to look at."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TextIO

#: Called with how many samples are done, and of how many.
Progress = Callable[[int, int], None]
_WIDTH = 40


def warm(
    bring: Callable[[int], Any], indices: Sequence[int], requests: int, progress: Progress
) -> None:
    """Call ``bring`` with all indices, ``requests`` at a time.

    Blocks: until all are done.

    Raises:
        Exception: What a call raised; no other is started then.
    """
    with ThreadPoolExecutor(requests) as pool:
        for done, _ in enumerate(_in_flight(pool, bring, indices, 2 * requests), 1):
            progress(done, len(indices))


def _in_flight(
    pool: ThreadPoolExecutor, function: Callable[[int], Any], indices: Iterable[int], most: int
) -> Iterator[Any]:
    """Results in order; no more than ``most`` are waited for at a time."""
    coming: deque[Future[Any]] = deque()
    try:
        for index in indices:
            coming.append(pool.submit(function, index))
            if len(coming) >= most:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()
    finally:
        for one in coming:
            one.cancel()


def quiet(done: int, total: int) -> None:
    """Say nothing."""
    del done, total


class Bar:
    """A progress bar for a terminal."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        """Draw it, if it has changed."""
        percent = 100 * done // max(1, total)
        if percent != self._shown:
            self._shown = percent
            full = _WIDTH * done // max(1, total)
            end = "\n" if done == total else ""
            self._stream.write(
                f"\r{self._what} [{'#' * full:.<{_WIDTH}}] {percent:3} % of {total}{end}"
            )
            self._stream.flush()
