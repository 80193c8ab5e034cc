"""``AIACC_PROFILE``: a trace of a job's first steps, for `aiacc-plan`."""

from __future__ import annotations

import atexit
import hashlib
import itertools
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from aiacc import _core, basics
from aiacc.collectives.barrier_join import after_join
from aiacc.collectives.objects import maxima, sums
from aiacc.planning.trace import Trace, times_of, typical, with_times
from aiacc.process_sets import ProcessSet

#: Steps that do not count, since they allocate and agree on names; and those whose medians do.
WARM_UP, COUNTED = 3, 10

_optimizers = itertools.count()
#: Whether anything records a profile, or has said why it does not.
_answered = False


class Recorder(Protocol):
    """What a front-end notes of its steps."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of every gradient, by name."""

    def step_done(self) -> None:
        """Note the end of a step. Steps without any gradient do not count."""

    def detach(self) -> None:
        """Note no more."""

    def traces(self, model: str) -> list[Trace]:
        """What was recorded, a trace for each step."""


class Profile:
    """Records the steps of one optimizer, then writes the file and takes no more time."""

    def __init__(self, path: Path, record: Callable[[], Recorder], process_set: ProcessSet) -> None:
        """Count the steps of what ``record`` makes; rank 0 of ``process_set`` writes ``path``."""
        global _answered
        _answered = True
        self._path = path
        self._process_set = process_set
        self._record = record
        self._recorder: Recorder | None = record()
        self._writes = process_set.rank() == 0
        self._steps = 0
        self._complete = False
        atexit.register(_end, weakref.ref(self))
        after_join(self._give_up)
        basics.at_init(self._restart)

    def step_done(self) -> None:
        """Note that gradients were reduced, which ends a step; the last one writes the file.

        Collective: every rank of the process set, equally often. Blocks in the last step.
        """
        recorder = self._recorder
        if recorder is None or self._process_set.size() is None:
            return
        recorder.step_done()
        self._steps += 1  # those without a gradient, too, which another rank may have had
        if self._steps < WARM_UP + COUNTED:
            return
        if sums([1], "profile.ranks", self._process_set) != [self._process_set.size()]:
            return  # a rank has joined before its last step: see `_give_up`
        self._complete = True
        self._detach()
        trace = slowest_of_all(recorder, self._path.stem, self._process_set)
        if trace is not None and self._writes:
            self._write(trace)

    def end(self) -> None:
        """Note no more, and tell of a file that is not written therefore. Idempotent."""
        if self._recorder is not None and not self._complete and self._writes:
            sys.stderr.write(
                f"aiacc: {self._path} was not written: {self._steps} steps (expected "
                f"{WARM_UP + COUNTED}); train for more, or leave out --profile (AIACC_PROFILE)\n"
            )
        self._detach()

    def _detach(self) -> None:
        if self._recorder is not None:
            self._recorder.detach()
            self._recorder = None

    def _restart(self) -> None:
        """In a job that starts anew, where ranks may be new: record anew, as these do."""
        self._detach()
        self._steps = 0
        if wanted(self._process_set):
            self._recorder = self._record()
            self._writes = self._process_set.rank() == 0

    def _give_up(self) -> None:
        """After a join: ranks came to it with different numbers of steps, and count no more."""
        if self._recorder is not None:
            self._detach()
            warnings.warn(
                f"AIACC_PROFILE: {self._path} was not written: a rank joined before "
                f"{WARM_UP + COUNTED} steps were recorded (expected that many before join())",
                stacklevel=2,
            )

    def _write(self, trace: Trace) -> None:
        try:
            self._path.write_text(trace.encode() + "\n")
        except OSError as error:  # the job is worth more than its profile
            warnings.warn(f"AIACC_PROFILE: {self._path} was not written: {error}", stacklevel=2)
            return
        sys.stderr.write(
            f"aiacc: {self._path}: {len(trace.tensors)} gradients, {trace.bytes / 1e6:.1f} MB, "
            f"{trace.compute_s * 1e3:.1f} ms of computation; aiacc-plan reads it\n"
        )


def wanted(process_set: ProcessSet) -> bool:
    """Whether AIACC_PROFILE asks this rank for a profile; else ranks of the set may record one."""
    global _answered
    if not _core.config()["profile"]:
        return False
    included = bool(process_set.included())
    _answered |= not included
    return included


def refuse(reason: str, stacklevel: int) -> None:
    """Warn that AIACC_PROFILE gets no profile; ``stacklevel`` as from the caller."""
    global _answered
    _answered = True
    warnings.warn(f"AIACC_PROFILE: no profile is written {reason}", stacklevel=stacklevel + 1)


def unused(path: str) -> str:
    """What to tell at the end of a job with AIACC_PROFILE=``path`` that nobody has seen, or ""."""
    if _answered:
        return ""
    return (
        f"AIACC_PROFILE: {path} was not written, since no DistributedOptimizer or "
        "DistributedGradientTape has reduced gradients (expected one: DistributedDataParallel and "
        "single operations are not recorded); record with one, whose trace serves for plans of "
        "DistributedDataParallel, or unset AIACC_PROFILE"
    )


def next_path() -> Path:
    """The file that AIACC_PROFILE names; a later optimizer has one of its own."""
    path, number = Path(str(_core.config()["profile"])), next(_optimizers)
    return path.with_name(f"{path.stem}.{number + 1}{path.suffix}") if number else path


def slowest_of_all(
    recorder: Recorder, model: str, process_set: ProcessSet, argument: str = "AIACC_PROFILE"
) -> Trace | None:
    """The slowest of all ranks at each gradient, each rank by the median of its steps.

    Ranks send times, not traces, so that 1,000 of them need no more memory than two.

    Collective: every rank of ``process_set``. Blocks.

    Returns:
        None, with a warning, if the ranks have other gradients, or this one has recorded nothing.
    """
    mine = None
    try:
        steps = recorder.traces(model)[WARM_UP:]
        mine = typical(steps) if steps else None
    except Exception as error:  # the other ranks wait for times of this one
        warnings.warn(
            f"{argument}: the recorded times cannot be read, {type(error).__name__}: {error}",
            stacklevel=2,
        )
    if basics.size() > 1:
        names = hashlib.sha256(repr(sorted(recorder.sizes.items())).encode()).digest()
        digest = int.from_bytes(names[:7], "big")
        highest, minus_lowest = maxima([digest, -digest], "profile.names", process_set)
        if highest != -minus_lowest:
            warnings.warn(
                f"{argument}: the ranks have gradients of different names or sizes (expected the "
                "same); there is no profile",
                stacklevel=2,
            )
            return None
        own = times_of(mine) if mine else [0.0] * (2 + 2 * len(recorder.sizes))
        times = maxima(own, "profile.times", process_set)
        mine = with_times(mine, times) if mine else None
    if mine is None:
        warnings.warn(
            f"{argument}: no gradient that a plan can have came in {COUNTED} steps of this rank "
            "(expected some, dense ones); there is no profile",
            stacklevel=2,
        )
    return mine


def _end(reference: weakref.ref[Profile]) -> None:
    profile = reference()
    if profile is not None:
        profile.end()
