"""Row network.engines: bus bandwidth of every engine between two hosts with several ranks each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench import tables as markdown
from bench.bed.plan import Spec
from bench.network.allreduce import CONGESTION, measure_on, rate
from bench.record import Run

#: Ranks of a host.
CELLS = ("1", "2", "4")
TITLES = {
    "tcp:4": "tcp",
    "mpi:4": "mpi",
    "hierarchical-mpi:4": "hierarchical-mpi",
    "hierarchical:4": "hierarchical",
}


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """All engines in turn."""
    spec = Spec("engines", hosts=2, congestion=CONGESTION)
    return measure_on(spec, TITLES, rounds, per_host=int(cell))


def tables(runs: Sequence[Run]) -> str:
    """A line for each number of ranks."""
    rates = [[run["cell"], *(rate(run, key) for key in TITLES)] for run in runs]
    return markdown.table(["ranks of a host", *TITLES.values()], rates)
