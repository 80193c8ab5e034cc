"""Whether a mix of codecs makes steps shorter; if not, it is withdrawn. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from aiacc.compression.codecs import BF16, NONE
from aiacc.planning.search import TOLERANCE

#: What was predicted to be fastest, a codec for each bucket, next to the dense ones by their names.
MIX = "predicted mix"
#: Medians of many steps differ by so much, as a fraction, for no reason.
NOISE = 0.02
#: While the mix stays, so many medians until dense ones are measured again: four of them.
AGAIN = 200


class CompressionWatch:
    """Compares the predicted mix with dense all-reduces, and goes on watching what has settled.

    Visits go there and back, `none`, `bf16`, the mix, the mix, `bf16`, `none`, so that a drift hits
    all alike. The mix stays only if it is faster than the best of the others by more than NOISE.
    When steps then twice in a row take longer than that best one did, or another time by more than
    TOLERANCE, the network has changed: dense steps come first again, and all are compared anew. So
    they are when the mix has stayed for AGAIN medians: dense steps may have become faster, which
    the others do not show.

    The job feeds it with medians of many steps of one rank, and tells all ranks what is next.

    Attributes:
        current: What the next steps are to use: a name of a dense codec, or MIX.
        settled: Whether the comparison has ended.
        comparisons: How many have begun. Let each take more steps than the one before.
    """

    def __init__(self, dense: Sequence[str] = (NONE.name, BF16.name)) -> None:
        """Begin with the first of the dense codecs that the user allows."""
        if not dense or MIX in dense:
            raise ValueError(f"dense codecs {dense} (expected names, such as ('none', 'bf16'))")
        self._dense = tuple(dense)
        self.current, self.settled, self.comparisons = self._dense[0], False, 0
        self._before, self._since, self._settled_s, self._limit_s = False, 0, 0.0, 0.0
        self._visits: list[str] = []
        self._seconds: dict[str, list[float]] = {}
        self._begin()

    def add(self, seconds: float) -> None:
        """Take the median step of the visit that ends."""
        if not 0 < seconds < math.inf:
            raise ValueError(f"a step of {seconds} s (expected more than 0, and finite)")
        if self.settled:
            off = seconds > self._limit_s or abs(seconds / self._settled_s - 1) > TOLERANCE
            self._since += 1
            if (off and self._before) or (self.current == MIX and self._since == AGAIN):
                self._begin()
            else:
                self._before = off
            return
        self._seconds[self.current].append(seconds)
        if self._visits:
            self.current = self._visits.pop(0)
        else:
            self._settle()

    def describe(self, mix: str) -> str:
        """What stays and what was measured, in a line for people; ``mix`` says what MIX is."""
        steps = ", ".join(f"{name} {fmean(s):.4g} s" for name, s in self._seconds.items() if s)
        measured = f"(measured steps: {steps or 'none yet'})"
        if not self.settled:
            return f"compression: comparing {measured}"
        if self.current == MIX:
            return f"compression: keeps the {MIX}: {mix} {measured}"
        return f"compression: keeps {self.current} {measured}; the {MIX} was not faster: {mix}"

    def _begin(self) -> None:
        there = [*self._dense, MIX]
        self._visits = [*there, *reversed(there)]
        self._seconds = {name: [] for name in there}
        self.current = self._visits.pop(0)
        self.settled = self._before = False
        self._since = 0
        self.comparisons += 1

    def _settle(self) -> None:
        means = {name: fmean(seconds) for name, seconds in self._seconds.items()}
        best = min(self._dense, key=lambda name: means[name])
        stays = means[MIX] < means[best] * (1 - NOISE)
        self.current = MIX if stays else best
        self._settled_s = means[self.current]
        # Beyond it the mix is no gain. A dense step has nothing better to go back to.
        self._limit_s = means[best] if stays else math.inf
        self.settled = True
