"""Contenders that take turns, so that all of them see the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping


def in_turn(names: Iterable[str], number: int) -> list[str]:
    """The order of a round: every second one goes backwards."""
    return list(names)[:: -1 if number % 2 else 1]


def timed(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[list[float]]]:
    """Samples of one job: seconds of each call in each round.

    Args:
        calls: What is measured, by contender.
        rounds: Calls of each that count.
        warm_up: Rounds before those.
        clock: Tells seconds.
        before: Called before each call; its time does not count.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(warm_up + rounds):
        for name in in_turn(calls, number):
            before()
            began = clock()
            calls[name]()
            if number >= warm_up:
                samples[name].append(round(clock() - began, 9))
    return {name: [values] for name, values in samples.items()}
