"""Contenders in turn on every rank of a job, and what the clocks of all ranks say of each."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

Thing = TypeVar("Thing")
#: What one rank saw of a contender: when its timed calls began and ended, and the CPU time of the
#: process per call. Seconds of CLOCK_MONOTONIC, which all processes of one machine share.
Spans = Mapping[str, Sequence[float]]
#: Makes samples of the spans of a contender, by rank.
Clock = Callable[[Sequence[Spans]], list[float]]


def nothing() -> None:
    """A step that a contender does not need."""


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a cell; only ``run`` is timed.

    Attributes:
        name: Its key in the samples.
        run: The work.
        prepare: Sets the inputs; before each round.
        finish: Ends what ``run`` left under way; after each round's last call.
        check: Raises AssertionError if the outputs are wrong; after each round.
    """

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = nothing
    finish: Callable[[], object] = nothing
    check: Callable[[], object] = nothing


def in_turn(things: Iterable[Thing], number: int) -> list[Thing]:
    """The order of a round: in time all have each place, and each predecessor, as often. Pure.

    It is a design of Williams, whose period is the number of things, or twice that if it is odd.
    """
    found = list(things)
    steps = ((place + 1) // 2 * (1 if place % 2 else -1) for place in range(len(found)))
    order = [found[(number + step) % len(found)] for step in steps]
    return order[:: -1 if len(order) % 2 and number // len(order) % 2 else 1]


def by_name(names: Iterable[str], rounds: int, run: Callable[[str], Any]) -> dict[str, list[Any]]:
    """What ``run`` returns for each name in each round."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(rounds):
        for name in in_turn(found, number):
            print(f"[bench] round {number}: {name}", file=sys.stderr, flush=True)
            found[name].append(run(name))
    return found


def alternate(starts: Sequence[Callable[[], Thing]], times: int) -> list[Thing]:
    """What each of ``starts``, such as jobs, returns; so many times, in turn."""
    return [start() for number in range(times) for start in in_turn(starts, number)]


def take_turns(
    contenders: Sequence[Contender],
    rounds: int,
    align: Callable[[], object],
    *,
    calls: int = 1,
    warm_up: int = 2,
) -> dict[str, dict[str, list[float]]]:
    """Time the contenders in turn, so that a machine that slows down slows all of them.

    Each round has an order of its own, see `in_turn`. Collective. Blocks.

    Args:
        contenders: Equal on all ranks.
        rounds: So many are kept.
        align: A barrier over the ranks.
        calls: Timed calls, back to back, in each round.
        warm_up: So many rounds before are dropped.

    Returns:
        Spans, by contender.
    """
    by_name = {one.name: one for one in contenders}
    seen: dict[str, dict[str, list[float]]] = {
        name: {"starts": [], "ends": [], "cpu": []} for name in by_name
    }
    gc.collect()
    gc.disable()
    try:
        for index in range(warm_up + rounds):
            for name in in_turn(by_name, index):
                starts, ends, cpu = _round(by_name[name], calls, align)
                if index >= warm_up:
                    seen[name]["starts"] += starts
                    seen[name]["ends"] += ends
                    seen[name]["cpu"].append(cpu)
    finally:
        gc.enable()
    return seen


def _round(
    one: Contender, calls: int, align: Callable[[], object]
) -> tuple[list[float], list[float], float]:
    clock, run = time.perf_counter, one.run
    starts, ends = [], []
    one.prepare()
    align()
    cpu = time.process_time()
    for _ in range(calls):
        starts.append(clock())
        run()
        ends.append(clock())
    cpu = time.process_time() - cpu
    one.finish()
    one.check()
    return starts, ends, cpu / calls


def seconds(ranks: Sequence[Spans]) -> list[float]:
    """From the arrival of the last rank to the departure of the last one, for each call."""
    starts = zip(*(rank["starts"] for rank in ranks), strict=True)
    ends = zip(*(rank["ends"] for rank in ranks), strict=True)
    return [round(max(end) - max(start), 9) for start, end in zip(starts, ends, strict=True)]


def of_callers(ranks: Sequence[Spans]) -> list[float]:
    """How long each call kept the one rank that made it, of all ranks."""
    return [
        round(end - start, 9)
        for rank in ranks
        for start, end in zip(rank["starts"], rank["ends"], strict=True)
    ]


def of_cpu(ranks: Sequence[Spans]) -> list[float]:
    """The CPU time of a call of each round, of all ranks."""
    return [round(value, 9) for rank in ranks for value in rank["cpu"]]


def gathered(
    jobs: Sequence[Sequence[Mapping[str, Spans]]],
    clock: Clock = seconds,
) -> dict[str, Any]:
    """The fields "samples" and "cpu" of a run, from what all ranks of each job return.

    Args:
        jobs: For each job what `take_turns` has returned, by rank.
        clock: Makes samples of the spans of a contender, by rank.

    Returns:
        "samples", and as "cpu" the mean CPU time of a call on all ranks together, by contender and
        job.
    """
    by_name: dict[str, list[list[Spans]]] = {}
    for ranks in jobs:
        for name in ranks[0]:
            by_name.setdefault(name, []).append([rank[name] for rank in ranks])
    return {
        "samples": {name: [clock(ranks) for ranks in parts] for name, parts in by_name.items()},
        "cpu": {
            name: [round(sum(fmean(rank["cpu"]) for rank in ranks), 9) for ranks in parts]
            for name, parts in by_name.items()
        },
    }


def timed(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    align: Callable[[], object] = nothing,
    *,
    warm_up: int = 1,
    clock: Clock = of_callers,
) -> dict[str, list[list[float]]]:
    """Samples of one rank by itself, of each of ``calls``."""
    contenders = [Contender(name, run) for name, run in calls.items()]
    spans = take_turns(contenders, rounds, align, warm_up=warm_up)
    return {name: [clock([one])] for name, one in spans.items()}
