"""Interleaved timing of contenders on one rank, and what the ranks' records add up to."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from bench.collectives.rows import Row


def _nothing() -> None:
    """Default of the steps that a contender does not need."""


@dataclass(frozen=True)
class Contender:
    """One way to do a row's work; only ``run`` is timed.

    Attributes:
        name: Key of ``rows.CONTENDERS``.
        run: The work.
        prepare: Sets the inputs; before each round.
        finish: Ends what ``run`` left under way; after each round's last call.
        check: Raises AssertionError if the outputs are wrong; after each round.
    """

    name: str
    run: Callable[[], None]
    prepare: Callable[[], None] = _nothing
    finish: Callable[[], None] = _nothing
    check: Callable[[], None] = _nothing


@dataclass
class Record:
    """What one rank saw of one contender.

    Attributes:
        starts: Clock, in ns, at the start of each timed call: CLOCK_MONOTONIC, which all processes
            of one machine share.
        ends: The same at its end.
        cpu_ns: CPU time of the whole process over each round's calls, per call.
        caller_cpu_ns: The part of it that the calling thread used.
    """

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    cpu_ns: list[float] = field(default_factory=list)
    caller_cpu_ns: list[float] = field(default_factory=list)


def interleave(
    row: Row,
    contenders: Sequence[Contender],
    iterations: int,
    align: Callable[[], None],
    warmup: int = 2,
) -> dict[str, Record]:
    """Time the contenders in turn, round after round, so that drift of the machine hits all alike.

    Collective. Blocks. Every second round goes backwards, so that nobody always follows the same
    contender.

    Args:
        row: Says how many calls a round has.
        contenders: Equal on all ranks.
        iterations: Rounds to keep, before ``row.rounds``.
        align: Barrier between the ranks.
        warmup: Rounds to discard.
    """
    records = {contender.name: Record() for contender in contenders}
    gc.collect()
    gc.disable()
    try:
        for index in range(warmup + iterations * row.rounds):
            turn = contenders if index % 2 == 0 else contenders[::-1]
            for contender in turn:
                into = records[contender.name] if index >= warmup else Record()
                _round(contender, row.calls, align, into)
    finally:
        gc.enable()
    return records


def _round(contender: Contender, calls: int, align: Callable[[], None], into: Record) -> None:
    clock = time.perf_counter_ns
    run = contender.run
    contender.prepare()
    align()
    cpu, caller = time.process_time_ns(), time.thread_time_ns()
    for _ in range(calls):
        into.starts.append(clock())
        run()
        into.ends.append(clock())
    into.caller_cpu_ns.append((time.thread_time_ns() - caller) / calls)
    into.cpu_ns.append((time.process_time_ns() - cpu) / calls)
    contender.finish()
    contender.check()


def samples(row: Row, ranks: Sequence[Record]) -> list[float]:
    """One sample per timed call, in the row's unit, from the records of all ranks."""
    if row.scope == "caller":
        spans = [
            end - start
            for record in ranks
            for start, end in zip(record.starts, record.ends, strict=True)
        ]
    else:
        starts = zip(*(record.starts for record in ranks), strict=True)
        ends = zip(*(record.ends for record in ranks), strict=True)
        spans = [max(end) - max(start) for start, end in zip(starts, ends, strict=True)]
    scale = {"ms": 1e6, "us": 1e3}[row.unit] * row.divisor
    return [round(span / scale, 5) for span in spans]


def cpu_ms(row: Row, ranks: Sequence[Record]) -> float:
    """Mean CPU time, user and system, that all ranks together spent per call."""
    return round(sum(fmean(record.cpu_ns) for record in ranks) / 1e6 / row.divisor, 5)


def caller_cpu_ms(row: Row, ranks: Sequence[Record]) -> float:
    """Mean CPU time of one rank's calling thread per call."""
    return round(fmean(fmean(record.caller_cpu_ns) for record in ranks) / 1e6 / row.divisor, 5)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie, interpolated linearly."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
