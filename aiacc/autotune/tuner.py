"""Measures the steps of this process and proposes parameters to all ranks."""

from __future__ import annotations

import logging
import time
from statistics import median

from aiacc import _core
from aiacc.autotune.lane_search import LaneSearch

_logger = logging.getLogger("aiacc.autotune")


class Tuner:
    """Finds the number of lanes while the job trains, by `LaneSearch` on rank 0.

    A proposal takes effect on all ranks in the same round of agreement. Results of all-reduces do
    not depend on it.
    """

    def __init__(self, lanes: int) -> None:
        """Begin a search of up to ``lanes`` lanes; units keep their size."""
        self._search = LaneSearch(lanes)
        self._last: float | None = None
        self._steps = 0

    @property
    def done(self) -> bool:
        """Whether the number of lanes is found."""
        return self._search.done

    def step_done(self) -> None:
        """Note that a training step has just ended. Never blocks."""
        if self._search.done:
            return
        self._steps += 1
        now = time.perf_counter()
        last, self._last = self._last, now
        if last is None:
            return
        before = self._search.lanes
        settled = self._search.add(now - last)
        if self._search.lanes != before:
            _core.propose_parameters(int(_core.stats()["unit_bytes"]), self._search.lanes)
        if settled:
            medians = {
                lanes: f"{median(samples):.4g} s"
                for lanes, samples in sorted(self._search.seconds.items())
            }
            _logger.info("[tuning] %d lanes; median step by lanes: %s", self._search.lanes, medians)

    def lack(self) -> str:
        """Why the number of lanes is not found, "" if it is."""
        if self._search.done:
            return ""
        if self._steps == 0:
            return (
                "AIACC_AUTOTUNE: no number of lanes was tried, since no DistributedOptimizer of "
                "torch has ended a step (expected one: steps of DistributedDataParallel and "
                "TensorFlow are not seen); set AIACC_LANES, as aiaccrun --netcheck advises"
            )
        return (
            f"AIACC_AUTOTUNE: the number of lanes was not found in {self._steps} steps (expected "
            f"{self._search.steps + 1} or more); train for longer, or set AIACC_LANES"
        )


_tuner: Tuner | None = None
#: Why nothing is tuned although AIACC_AUTOTUNE asks for it; "" otherwise.
_nothing = ""


def start(rank: int, lanes: int) -> None:
    """Tune the job that has just started; ``lanes`` are connected."""
    global _tuner, _nothing
    _tuner, _nothing = None, ""
    if rank == 0 and lanes > 1:
        _tuner = Tuner(lanes)
    elif rank == 0:
        _nothing = (
            "AIACC_AUTOTUNE: there was 1 lane, so nothing to tune (expected 2 ranks or more, and "
            "no AIACC_LANES=1)"
        )


def stop() -> None:
    """Tune no more."""
    global _tuner, _nothing
    _tuner, _nothing = None, ""


def unused() -> str:
    """What to tell at the end of a job of an AIACC_AUTOTUNE that has come to nothing; "": nothing.

    Of rank 0, which tunes.
    """
    return _nothing if _tuner is None else _tuner.lack()


def step_done() -> None:
    """Note the end of a training step, if this process tunes. Never blocks."""
    if _tuner is not None:
        _tuner.step_done()


def searches() -> bool:
    """Whether this process is trying numbers of lanes."""
    return _tuner is not None and not _tuner.done
