"""Row network.wan: bus bandwidth between two hosts far from each other, over lanes and units."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from bench import tables as markdown
from bench.bed.plan import Spec
from bench.network.allreduce import CONGESTION, LANES, lanes_text, measure_on, rate_mbit
from bench.record import Run

#: Probability that a packet is lost, and MiB of the tensor.
CELLS = ("0:64", "1e-4:64", "1e-4:256")
_UNITS = ("1MiB", "8MiB")


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """All lanes and units in turn; units of 1 MiB alone with the larger tensor."""
    loss, mib = cell.split(":")
    units = _UNITS if mib == "64" else _UNITS[:1]
    path = {"congestion": CONGESTION, "delay_ms": 10.0, "loss": float(loss)}
    spec = Spec("wan", hosts=2, flow_mbit=0, **path)
    keys = [f"tcp:{lanes}:{unit}" for unit, lanes in product(units, LANES)]
    return measure_on(spec, keys, rounds, mib=int(mib))


def tables(runs: Sequence[Run]) -> str:
    """A line for each cell and unit, a column for each number of lanes."""
    lines = []
    for run, unit in product(runs, _UNITS):
        keys = {lanes: f"tcp:{lanes}:{unit}" for lanes in LANES}
        rates = {lanes: rate_mbit(run, key) for lanes, key in keys.items() if key in run["samples"]}
        if rates:
            gain = f"{rates[8] / rates[1]:.1f}x" if {1, 8} <= rates.keys() else ""
            texts = [f"{rates[lanes]:.0f} Mbit/s" if lanes in rates else "" for lanes in LANES]
            mib = f"{run['tensor_bytes'] >> 20} MiB"
            lines.append([f"{run['bed']['loss']:g}", mib, unit, *texts, gain])
    head = ["loss", "tensor", "AIACC_UNIT_BYTES", *map(lanes_text, LANES), "8 lanes over 1"]
    return markdown.table(head, lines)
