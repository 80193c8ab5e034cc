"""What rows on capped hosts have in common: a bed, a probe, rounds of contenders, and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from bench import job, plots
from bench.bed.bed import Bed
from bench.bed.plan import Spec
from bench.network.workloads import Workload
from bench.record import Run, samples
from bench.tables import amount, fastest, ratio, spread, table
from bench.turns import in_turn

HOSTS = 4
#: Jobs of a cell, and steps that count of each contender in each of them.
ROUNDS, STEPS = 2, 3
#: Share of a packet that is TCP's payload, at an MTU of 1500.
_PAYLOAD = 1448 / 1514
_LIMIT_S = 7200.0


@dataclass(frozen=True)
class Contender:
    """One way to train, by `bench.network.step`.

    Attributes:
        title: As in tables.
        kind: aiacc, ddp, or none for no communication.
        variables: Environment of aiacc's ranks.
        plan: As text, "auto", or None.
        groups: Of gradients that are reduced together, None for each by itself.
        compression: Of aiacc: a codec as text, or "Compression." and its attribute.
        unsent: Whether steps in which nothing is sent are timed, too.
        views: Whether gradients are views of buckets.
        cap_mb: Of DDP's buckets, unless there are ``limits_mib``.
        limits_mib: Of each of DDP's buckets.
        contexts: How often gloo's interface is listed.
        hook: DDP's communication hook: "", fp16 or powersgd.
        warmup: Steps that do not count: buckets are formed after the first, and TCP finds its
            windows.
        per_host: Ranks on each host.
    """

    title: str
    kind: str = "aiacc"
    variables: Mapping[str, str] = field(default_factory=dict)
    plan: str | None = None
    groups: int | None = None
    compression: str = "Compression.none"
    unsent: bool = False
    views: bool = False
    cap_mb: int = 25
    limits_mib: Sequence[float] | None = None
    contexts: int = 1
    hook: str = ""
    warmup: int = 4
    per_host: int = 1


def ddp(cap_mb: int, contexts: int = 1, what: str = "", **options: Any) -> Contender:
    """DDP over gloo, with views, and connections for each time that an interface is listed."""
    listed = f", interface listed {contexts} times" if contexts > 1 else ""
    title = f"DDP/gloo{what}, {cap_mb} MB{listed}"
    return Contender(title, "ddp", views=True, cap_mb=cap_mb, contexts=contexts, **options)


def spec(name: str, mbit: float, hosts: int = HOSTS, delay_ms: float = 0.0) -> Spec:
    """Hosts whose interfaces are capped.

    TCP's congestion control is cubic, what most systems have. Connections keep their windows over a
    pause: what they carry afterwards differs from step to step otherwise, and no model has that.
    """
    return Spec(
        name=name,
        hosts=hosts,
        flow_mbit=0,
        nic_mbit=mbit,
        delay_ms=delay_ms,
        congestion="cubic",
        slow_start_after_idle=False,
    )


def wire_s(nbytes: float, mbit: float, hosts: int = HOSTS) -> float:
    """Seconds of a ring all-reduce that does nothing but fill the interfaces."""
    return 2 * (hosts - 1) / hosts * nbytes * byte_s(mbit)


def byte_s(mbit: float) -> float:
    """Seconds that a byte takes on an interface."""
    return 8 / (mbit * 1e6 * _PAYLOAD)


def probed(bed: Bed, variables: Mapping[str, str], mib: int) -> dict[str, Any]:
    """What operations of up to so many MiB cost between the hosts, as `aiacc-plan probe` has it."""
    ranks = job.run_on(
        bed, "bench.network.step:probe", {"mib": mib}, variables=variables, timeout_s=_LIMIT_S
    )
    network: dict[str, Any] = ranks[0]
    return network


def trained(
    bed: Bed,
    work: Workload,
    contenders: Mapping[str, Contender],
    rounds: int | None,
    variables: Mapping[str, str] | None = None,
    *,
    checked: bool = True,
) -> dict[str, Any]:
    """What `measured` returns of steps of a workload, by `bench.network.step`.

    ``checked``: gradients are numbers whose averages are known; lossy codes need no such.
    """
    task = {"workload": work.name, "compute_s": work.compute_s, "checked": checked}
    told = [{"name": name, **asdict(one)} for name, one in contenders.items()]
    return measured(bed, "bench.network.step:rank", task, told, rounds, variables)


def measured(
    bed: Bed,
    work: str,
    task: Mapping[str, Any],
    contenders: Sequence[Mapping[str, Any]],
    rounds: int | None,
    variables: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What a result file has of rounds in which contenders take turns, see `in_turn`.

    Blocks. Main thread only.

    Args:
        bed: The hosts.
        work: Function that gets ``task`` with "contenders" and "steps" on every rank, and returns
            by the names of the contenders: "samples", seconds of steps; "unsent", those of steps in
            which nothing is sent, if there are any; whatever else, which is kept of the first rank.
        task: What all contenders have in common.
        contenders: With "name" and, unless it is 1, "per_host"; those with equally many ranks on a
            host share a job.
        rounds: None for ROUNDS.
        variables: Added to the environment of the ranks.

    Returns:
        "samples" and "unsent" by contender and round, of the slowest rank at each step; "notes";
        "unit" and "bed".
    """
    found: dict[str, dict[str, list[Any]]] = {"samples": {}, "unsent": {}, "notes": {}}
    for number in range(ROUNDS if rounds is None else rounds):
        order = in_turn(contenders, number)
        for per_host in dict.fromkeys(one.get("per_host", 1) for one in order):
            together = [one for one in order if one.get("per_host", 1) == per_host]
            ranks = job.run_on(
                bed,
                work,
                {**task, "steps": STEPS, "contenders": together},
                per_host=per_host,
                variables=variables,
                timeout_s=_LIMIT_S,
            )
            for name in ranks[0]:
                _keep(found, name, [rank[name] for rank in ranks])
    return {"unit": "s", **found, "bed": asdict(bed.spec)}


def _keep(found: dict[str, dict[str, list[Any]]], name: str, ranks: list[dict[str, Any]]) -> None:
    for kind in ("samples", "unsent"):
        steps = zip(*(rank.pop(kind, []) for rank in ranks), strict=True)
        if slowest := [max(step) for step in steps]:
            found[kind].setdefault(name, []).append(slowest)
    if ranks[0]:
        found["notes"].setdefault(name, []).append(ranks[0])


# Tables -------------------------------------------------------------------------------------------
#
# Besides what `measured` returns, runs have "predicted": "step_s" and "exposed_s" by contender.


def across(runs: Sequence[Run], titles: Mapping[str, str], text: Callable[[Run, str], str]) -> str:
    """A line for each contender and a column for each cell, of those with any text; else ""."""
    texts = [[text(run, key) for run in runs] for key in titles]
    shown = [at for at in range(len(runs)) if any(line[at] for line in texts)]
    lines = [
        [title, *(line[at] for at in shown)]
        for title, line in zip(titles.values(), texts, strict=True)
        if any(line)
    ]
    return table(["", *(runs[at]["title"] for at in shown)], lines) if lines else ""


def parts(texts: Mapping[str, str]) -> str:
    """Texts behind their headings, without those that are empty."""
    return "\n\n".join(f"{head}\n\n{text}" for head, text in texts.items() if text)


def steps(
    runs: Sequence[Run], titles: Mapping[str, str], peers: Sequence[str], ours: Sequence[str]
) -> str:
    """What steps take, the fastest peer bold, and ours over that."""

    def text(run: Run, key: str) -> str:
        if key not in run["samples"]:
            return ""
        best = fastest(run, peers)
        if key in ours and best is not None:
            return f"{spread(run, key)}, {ratio(run, key, best):.2f}x"
        return f"**{spread(run, key)}**" if key == best else spread(run, key)

    return across(runs, titles, text)


def models(runs: Sequence[Run], titles: Mapping[str, str], which: str) -> str:
    """What was measured / predicted of "step_s" or "exposed_s"."""

    def text(run: Run, key: str) -> str:
        found = {"step_s": step_s, "exposed_s": exposed_s}[which](run, key)
        predicted = run["predicted"].get(key, {}).get(which)
        if found is None or predicted is None:
            return ""
        return f"{amount(found, 's')} / {amount(predicted, 's')}"

    return across(runs, titles, text)


def step_s(run: Run, key: str) -> float | None:
    """Median seconds of a step; None if the contender took no part."""
    return median(samples(run, key)) if key in run["samples"] else None


def exposed_s(run: Run, key: str) -> float | None:
    """Seconds by which a step is longer than one of the same contender in which nothing is sent."""
    whole = step_s(run, key)
    if whole is None or key not in run["unsent"]:
        return None
    alone: float = median(value for job_s in run["unsent"][key] for value in job_s)
    return whole - alone


def plot(runs: Sequence[Run], titles: Mapping[str, str], ours: Sequence[str]) -> Any:
    """A panel for each cell: steps as bars; a line over each that was predicted."""
    plain = {key: title.replace("`", "") for key, title in titles.items()}
    figure, axes = plots.panels(len(runs))
    for axis, run in zip(axes, runs, strict=True):
        plots.bars(axis, run, plain, ours)
        for at, key in enumerate(key for key in titles if key in run["samples"]):
            if predicted := run.get("predicted", {}).get(key):
                axis.plot([predicted["step_s"]] * 2, [at - 0.4, at + 0.4], color="black")
    return figure
