"""Row network.ablation: what lanes, units, hierarchy and negotiation are worth in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench import tables as markdown
from bench.bed.bed import bed_for
from bench.bed.plan import Spec
from bench.network.allreduce import CONGESTION
from bench.network.cells import Contender, trained
from bench.network.workloads import workload
from bench.record import Run

CELLS = ("resnet50",)
_LANES = (1, 4, 8)
_UNITS = ("256KiB", "1MiB", "8MiB")
#: Engine, lanes, unit, and how gradients are agreed on. "bits": each as it comes, known ones as
#: bits. "names": each as it comes, by name every time. "once": all together, after the backward
#: pass.
DEFAULT = "tcp:4:1MiB:bits"
SETTINGS = (
    *(f"tcp:{lanes}:{unit}:bits" for lanes in _LANES for unit in _UNITS),
    *(f"hierarchical:{lanes}:1MiB:bits" for lanes in _LANES),
    *(f"tcp:4:1MiB:{how}" for how in ("names", "once")),
)
_HOSTS, _PER_HOST = 4, 2


def _way(setting: str) -> Contender:
    """How ranks train with a setting."""
    engine, lanes, unit, negotiation = setting.split(":")
    variables = {"AIACC_ENGINE": engine, "AIACC_LANES": lanes, "AIACC_UNIT_BYTES": unit}
    if negotiation == "names":
        variables["AIACC_CACHE_CAPACITY"] = "0"
    groups = 1 if negotiation == "once" else None
    return Contender(setting, "aiacc", variables, groups=groups, warmup=1, per_host=_PER_HOST)


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """All settings in turn."""
    spec = Spec("ablation", _HOSTS, flow_mbit=75, nic_mbit=250, congestion=CONGESTION)
    with bed_for(spec) as bed:
        found = trained(bed, workload(cell), {one: _way(one) for one in SETTINGS}, rounds)
    return {
        "title": f"{_HOSTS} hosts of {_PER_HOST} ranks; {spec.caps}",
        **found,
        "negotiation": {
            name: [notes[-1]["rounds_per_step"], notes[-1]["control_bytes_per_step"]]
            for name, notes in found["notes"].items()
        },
    }


def tables(runs: Sequence[Run]) -> str:
    """A line for each setting."""
    (run,) = runs
    lines = [
        [
            *name.split(":"),
            markdown.spread(run, name),
            f"{markdown.ratio(run, name, DEFAULT):.2f}x",
            "{:.0f}, {:,.0f}".format(*run["negotiation"][name]),
        ]
        for name in SETTINGS
    ]
    head = ["engine", "AIACC_LANES", "AIACC_UNIT_BYTES", "negotiation", "step (of the jobs)"]
    head += ["over the default", "rounds, bytes of negotiation per step"]
    return markdown.table(head, lines)
