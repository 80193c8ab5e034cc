"""Table and plot of docs/network.md from the result file of `bench.network.allreduce`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def latest(runs: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The newest row of each engine, bed and number of lanes, by engine, hosts and lanes."""
    rows: dict[str, Row] = {}
    for run in sorted(runs, key=lambda run: run["when"]):
        for row in run["rows"]:
            rows[f"{row['engine']} {row['lanes']} {sorted(row['bed'].items())}"] = row
    order = {"tcp": 0, "mpi": 1}
    return sorted(
        rows.values(),
        key=lambda row: (order[row["engine"]], _caps(row), row["hosts"], row["bed"]["slow"],
                         row["lanes"]),
    )  # fmt: skip


def lanes_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line per newest row."""
    lines = [
        "| engine | flow / interface | hosts | lanes | at most | measured | share | to reach "
        "| data flows of a host | load |",
        "| --- " * 10 + "|",
    ]
    for row in latest(runs):
        flow, nic = _caps(row)
        slow = f", one flow at {row['bed']['slow']:g}" if row["bed"]["slow"] else ""
        bar = row["bar"]
        share = f"{row['share']:.3f}"
        reached = "" if bar is None else f">= {bar:g}"
        lines.append(
            f"| {row['engine']} | {flow:g} / {nic:g} | {row['hosts']} | {row['lanes']}{slow} "
            f"| {row['limit_mbit']:g} | {row['busbw_mbit']:.0f} "
            f"| {share if bar is None or row['share'] >= bar else f'**{share}**'} | {reached} "
            f"| {', '.join(str(count) for count in sorted(set(row['data_flows'])))} "
            f"| {row['load'][0]:g} |"
        )
    return "\n".join(lines)


def plot_lanes(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bus bandwidth over lanes, a line per engine and hosts, at the widest caps.

    Needs matplotlib.
    """
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("svg")
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    rows = latest(runs)
    widest = max(_caps(row) for row in rows)
    shown = [row for row in rows if _caps(row) == widest and not row["bed"]["slow"]]
    figure, axis = pyplot.subplots(figsize=(5, 3.6))
    limits = {row["lanes"]: row["limit_mbit"] for row in shown}
    axis.plot(*zip(*sorted(limits.items()), strict=True), "--", color="grey", label="at most")
    for engine, marker in (("tcp", "o"), ("mpi", "x")):
        for hosts in sorted({row["hosts"] for row in shown if row["engine"] == engine}):
            points = [
                (row["lanes"], row["busbw_mbit"])
                for row in shown
                if (row["engine"], row["hosts"]) == (engine, hosts)
            ]
            title = f"{engine}, {hosts} hosts"
            axis.plot(*zip(*points, strict=True), marker=marker, label=title)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(limits), [str(lanes) for lanes in sorted(limits)])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("lanes")
    axis.set_ylabel("bus bandwidth, Mbit/s")
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _caps(row: Row) -> tuple[float, float]:
    return row["bed"]["flow_mbit"], row["bed"]["nic_mbit"]
