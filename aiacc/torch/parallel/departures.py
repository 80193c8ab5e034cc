"""Exchanges of what ranks compute, each on its way as soon as this rank has its part of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from aiacc import _core


class Departures:
    """Starts exchanges while this rank computes what later ones carry.

    Whose results others wait for is decided elsewhere, and so is what an exchange does. Ranks may
    start exchanges in different orders, for each has a name.
    """

    def __init__(self, parts: Sequence[Iterable[Hashable]], start: Callable[[int], None]) -> None:
        """Start those at once in which this rank has no part.

        Args:
            parts: Of each exchange, the items that this rank computes for it.
            start: Starts one, by its number. Never blocks.
        """
        self._awaited = [set(part) for part in parts]
        self._waiting = list(range(len(self._awaited)))
        self._start = start
        self._leave()

    def computed(self, items: Iterable[Hashable]) -> None:
        """Start what these complete. Never blocks."""
        done = set(items)
        for number in self._waiting:
            self._awaited[number] -= done
        self._leave()

    def give_up(self) -> None:
        """Start the rest, whatever is missing: others wait for it. Never blocks."""
        for number in self._waiting:
            self._awaited[number].clear()
        self._leave()

    def _leave(self) -> None:
        leaving = [number for number in self._waiting if not self._awaited[number]]
        for number in leaving:
            self._waiting.remove(number)
            self._start(number)
        if leaving:
            # What comes next is computation: nothing else would send the core on its way.
            _core.flush()
