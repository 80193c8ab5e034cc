"""Row network.training: steps of a workload on capped virtual hosts, for aiacc and its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import plots
from bench import tables as markdown
from bench.bed.bed import Bed, bed_for
from bench.bed.plan import Spec
from bench.job import run_on
from bench.network.workloads import workload
from bench.record import Run
from bench.turns import by_name

#: Workload, and Mbit/s of a flow; 0: flows are not capped.
CELLS = ("resnet50:300", "resnet50:0", "vgg16:300", "vgg16:0", "bert-base:300", "bert-base:0")
#: Steps after which `aiacc.autotune` has settled, and two more.
_SEARCH_STEPS = 42
_STEPS, _ROUNDS = 3, 2
#: Of one job, with the slowest network and the most steps.
_TIMEOUT_S = 3600.0
OURS = ("lanes1", "lanes4", "lanes8", "bf16", "auto")


@dataclass(frozen=True)
class Way:
    """One way to train.

    Attributes:
        title: As in tables.
        kind: "aiacc", "ddp", or "none" for no communication.
        variables: Environment of its ranks.
        warm_up: Steps before those that count, besides the first one.
        groups: Groups of gradients that are reduced together, 0 for each by itself.
        compression: Attribute of ``aiacc.torch.Compression``.
        bucket_mb: DDP's ``bucket_cap_mb``.
    """

    title: str
    kind: str = "aiacc"
    variables: Mapping[str, str] = field(default_factory=dict)
    warm_up: int = 1
    groups: int = 0
    compression: str = "none"
    bucket_mb: float = 25


def job(
    bed: Bed, work: str, way: Way, steps: int, *, per_host: int = 1, compute_s: float = 0
) -> dict[str, Any]:
    """What `bench.network.step.run` has found on rank 0 of a job on a bed. Main thread only."""
    task = {**vars(way), "workload": work, "steps": steps, "compute_s": compute_s}
    ranks = run_on(
        bed,
        "bench.network.step:run",
        task,
        per_host=per_host,
        variables=way.variables,
        timeout_s=_TIMEOUT_S,
    )
    found: dict[str, Any] = ranks[0]
    return found


def _ours(lanes: int, more: str = "", **options: Any) -> Way:
    variables = {"AIACC_LANES": str(lanes), "AIACC_ENGINE": "tcp"}
    return Way(f"aiacc, {lanes} lane{'s' * (lanes > 1)}{more}", "aiacc", variables, **options)


def ddp(contexts: int, bucket_mb: int) -> Way:
    """DDP over gloo, which has one context with connections of its own for each interface."""
    variables = {"GLOO_SOCKET_IFNAME": ",".join(["eth0"] * contexts)}
    title = f"DDP/gloo, {contexts} context{'s' * (contexts > 1)}, {bucket_mb} MB"
    return Way(title, "ddp", variables, bucket_mb=bucket_mb)


WAYS = {
    "none": Way("no communication", "none"),
    "lanes1": _ours(1),
    "lanes4": _ours(4),
    "lanes8": _ours(8),
    "bf16": _ours(8, ", bfloat16", compression="bf16"),
    "auto": Way(
        "aiacc, AIACC_AUTOTUNE",
        "aiacc",
        {"AIACC_AUTOTUNE": "1", "AIACC_ENGINE": "tcp"},
        warm_up=_SEARCH_STEPS,
    ),
    "ddp1:25": ddp(1, 25),
    **{f"ddp4:{bucket_mb}": ddp(4, bucket_mb) for bucket_mb in (5, 10, 25, 50)},
}
TITLES = {name: way.title for name, way in WAYS.items()}
PEERS = tuple(name for name, way in WAYS.items() if way.kind == "ddp")


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Jobs of all ways in turn, on four hosts with a rank each."""
    name, flow_mbit = cell.split(":")
    spec = Spec("training", hosts=4, flow_mbit=float(flow_mbit), nic_mbit=1000)
    with bed_for(spec) as bed:
        found = by_name(WAYS, rounds or _ROUNDS, lambda way: job(bed, name, WAYS[way], _STEPS))
    return {
        "title": f"{workload(name).title}; {spec.caps}",
        "unit": "s",
        "samples": {way: [one["seconds"] for one in jobs] for way, jobs in found.items()},
        "chosen_lanes": [one["lanes"] for one in found["auto"]],
        "bed": asdict(spec),
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
    figure, axes = plots.panels(len(runs))
    for axis, run in zip(axes, runs, strict=True):
        plots.bars(axis, run, TITLES, OURS)
    return figure
