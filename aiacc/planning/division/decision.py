"""Whether it pays to divide work among ranks and to exchange the results. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiacc.planning.cost import ALL_GATHER, CostModel, duration
from aiacc.planning.division.placement import Owners, Waves, in_waves, longest_first

#: The most waves in which results are exchanged.
MOST_WAVES = 8
#: Dividing has to be faster by this much, as predicted: below, it is a matter of noise.
MARGIN = 0.05


@dataclass(frozen=True)
class Division:
    """Who computes what, and when results travel."""

    owners: Owners
    waves: Waves
    #: Predicted seconds of the busiest rank's computation, and until everybody has all results.
    compute_s: float
    finish_s: float


@dataclass(frozen=True)
class Decision:
    """What was decided about a call of `aiacc.torch.parallel_map`, and by which numbers.

    Attributes:
        divided: Whether ranks compute parts; else each computes everything.
        reason: One line for people.
        ranks: That could share the work.
        owners: Which of them computes what, by its index in the process set; () if not divided.
        waves: Exchanges of results.
        serial_s: Measured seconds of all of it on one rank; None while it is not known.
        divided_s: Predicted seconds until every rank has all results; None while it is not known.
    """

    divided: bool
    reason: str
    ranks: int
    owners: Owners = ()
    waves: int = 0
    serial_s: float | None = None
    divided_s: float | None = None


def divide(
    loads: Sequence[float], ranks: int, nbytes: Sequence[float], network: CostModel
) -> Division:
    """The division by the longest processing time with the number of waves that ends first.

    Args:
        loads: Seconds of each item.
        ranks: That share them.
        nbytes: Bytes of each result.
        network: What an all-gather costs.
    """
    owners = longest_first(loads, ranks)
    best: Division | None = None
    for number in range(1, MOST_WAVES + 1):
        waves = in_waves(loads, owners, ranks, number)
        compute_s, finish_s = predict(waves, loads, nbytes, network)
        if best is None or finish_s < best.finish_s:
            best = Division(owners, waves, compute_s, finish_s)
    assert best is not None
    return best


def decide(
    loads: Sequence[float],
    ranks: int,
    nbytes: Sequence[float],
    network: CostModel,
    wish: bool | None = None,
    overhead_s: float = 0.0,
    serial_s: float | None = None,
) -> tuple[Decision, Division | None]:
    """Whether `divide` ends before a single rank has computed everything.

    The same on all ranks that are given the same numbers.

    Args:
        loads: See `divide`.
        ranks: See `divide`.
        nbytes: See `divide`.
        network: See `divide`.
        wish: True: divide in any case.
        overhead_s: What a divided call took longer than was predicted of it.
        serial_s: What everything took where every rank computed it; None: the sum of the loads.

    Returns:
        The decision, and how the work is divided if it is.
    """
    serial_s = float(sum(loads)) if serial_s is None else serial_s
    division = divide(loads, ranks, nbytes, network)
    divided_s = division.finish_s + overhead_s
    pays = wish or divided_s < serial_s * (1 - MARGIN)
    numbers = (
        f"{duration(serial_s)} on one rank, {duration(divided_s)} on {ranks} "
        f"({duration(division.compute_s)} of it computation, {sum(nbytes) / 1e6:.3g} MB to send)"
    )
    if not pays:
        reason = f"every rank computes all {len(loads)} tensors: {numbers}"
        return Decision(False, reason, ranks, (), 0, serial_s, divided_s), None
    number = len(division.waves)
    reason = f"{len(loads)} tensors divided among {ranks} ranks in {number} waves: {numbers}"
    return (
        Decision(True, reason, ranks, division.owners, number, serial_s, divided_s),
        division,
    )


def predict(
    waves: Waves, loads: Sequence[float], nbytes: Sequence[float], network: CostModel
) -> tuple[float, float]:
    """Seconds until the computation ends, and the last exchange.

    Exchanges follow each other, and each begins when the slowest rank has its part. To start one
    costs a rank as much as one of nothing does.
    """
    startup = float(network.time(ALL_GATHER, 0.0))
    clocks = [0.0] * (len(waves[0]) if waves else 1)
    arrived = 0.0
    for one in waves:
        for rank, items in enumerate(one):
            clocks[rank] += sum(loads[item] for item in items) + startup
        size = sum(nbytes[item] for items in one for item in items)
        arrived = max(arrived, *clocks) + float(network.time(ALL_GATHER, size))
    return max(clocks), max(arrived, *clocks)
