"""Row network.training: steps of a workload on capped virtual hosts, for aiacc and its peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench import tables as markdown
from bench.bed.bed import bed_for
from bench.bed.plan import Spec
from bench.network import cells
from bench.network.allreduce import lanes_text
from bench.network.cells import Contender, ddp
from bench.network.workloads import workload
from bench.record import Run

#: Workload, and Mbit/s of a flow; 0: flows are not capped.
CELLS = ("resnet50:300", "resnet50:0", "vgg16:300", "bert-base:300", "bert-base:0")
#: Steps after which `aiacc.autotune` has settled, and two more.
_SEARCH_STEPS = 42
OURS = ("lanes1", "lanes4", "lanes8", "auto")


def _ours(lanes: int) -> Contender:
    variables = {"AIACC_LANES": str(lanes), "AIACC_ENGINE": "tcp"}
    return Contender(f"aiacc, {lanes_text(lanes)}", "aiacc", variables, warmup=2)


WAYS = {
    "none": Contender("no communication", "none", warmup=2),
    "lanes1": _ours(1),
    "lanes4": _ours(4),
    "lanes8": _ours(8),
    "auto": Contender(
        "aiacc, AIACC_AUTOTUNE",
        "aiacc",
        {"AIACC_AUTOTUNE": "1", "AIACC_ENGINE": "tcp"},
        warmup=1 + _SEARCH_STEPS,
    ),
    "ddp1:25": ddp(25, warmup=2),
    **{f"ddp4:{cap}": ddp(cap, 4, warmup=2) for cap in (2, 5, 10, 25, 50)},
    **{f"ddp8:{cap}": ddp(cap, 8, warmup=2) for cap in (2, 10, 25)},
}
TITLES = {name: way.title for name, way in WAYS.items()}
PEERS = tuple(name for name, way in WAYS.items() if way.kind == "ddp")


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """All ways in turn, on four hosts with a rank each."""
    name, flow_mbit = cell.split(":")
    work = workload(name)
    spec = Spec("training", hosts=4, flow_mbit=float(flow_mbit), nic_mbit=1000)
    with bed_for(spec) as bed:
        found = cells.trained(bed, work, WAYS, rounds)
    return {
        "title": f"{work.title}; {spec.caps}",
        **found,
        "chosen_lanes": [one["lanes"] for one in found["notes"]["auto"]],
    }


def tables(runs: Sequence[Run]) -> str:
    """A line for each way of each cell, and what autotuning chose."""
    chosen = [
        f"{run['title']}: {', '.join(str(lanes) for lanes in sorted(set(run['chosen_lanes'])))}"
        for run in runs
    ]
    contest = markdown.contest(runs, TITLES, PEERS, OURS)
    return f"{contest}\n\nLanes that AIACC_AUTOTUNE chose: {'. '.join(chosen)}."


def plot(runs: Sequence[Run]) -> Any:
    """A panel for each cell."""
    return cells.plot(runs, TITLES, OURS)
