"""How many lanes a job should use: a decision from the durations of its own steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

#: A slower network stack or a busy host pays for every lane, so one more has to be worth it.
TOLERANCE = 0.02


def candidates(most: int) -> list[int]:
    """Numbers of lanes to try, largest first: ``most`` and the powers of two below."""
    found = [most]
    power = 1
    while power < most:
        found.insert(1, power)
        power *= 2
    return found


def choose(seconds: Mapping[int, Sequence[float]], tolerance: float = TOLERANCE) -> int:
    """The fewest lanes whose median step is at most ``tolerance`` slower than the fastest.

    So it is never slower by more than that than any other number that was tried.

    Args:
        seconds: Durations of steps, by number of lanes.
        tolerance: As a fraction.
    """
    medians = {lanes: median(samples) for lanes, samples in seconds.items()}
    limit = min(medians.values()) * (1 + tolerance)
    return min(lanes for lanes, value in medians.items() if value <= limit)


class LaneSearch:
    """Walks through the candidates, there and back, so that a drift hits all alike.

    Args:
        most: Lanes that are connected, and in use when the search begins.
        steps: Steps to measure at each visit.
        settle: Steps to ignore before them: the new number holds from some moment of the first on.
        passes: Visits of every candidate.
    """

    def __init__(self, most: int, *, steps: int = 4, settle: int = 1, passes: int = 2) -> None:
        """Nothing is measured yet."""
        self._tour = [
            lanes
            for number in range(passes)
            for lanes in candidates(most)[:: 1 if number % 2 == 0 else -1]
        ]
        self._steps, self._settle = steps, settle
        self._visit = 0
        self._seen = 0
        self.seconds: dict[int, list[float]] = {lanes: [] for lanes in candidates(most)}
        self.lanes = most  #: to be used for the next step

    @property
    def steps(self) -> int:
        """How many durations settle it."""
        return len(self._tour) * (self._steps + self._settle)

    @property
    def done(self) -> bool:
        """Whether ``lanes`` is the result."""
        return self._visit == len(self._tour)

    def add(self, seconds: float) -> bool:
        """Take the duration of one more step, which used ``lanes``; whether that settled it."""
        if self.done:
            return False
        self._seen += 1
        if self._seen > self._settle:
            self.seconds[self.lanes].append(seconds)
        if self._seen == self._settle + self._steps:
            self._visit += 1
            self._seen = 0
            self.lanes = choose(self.seconds) if self.done else self._tour[self._visit]
            return self.done
        return False
