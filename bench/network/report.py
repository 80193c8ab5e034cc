"""``python -m bench.network.report``: tables and plots of docs/network.md, from results."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.machine import ROOT
from bench.network.lane_report import lanes_text, plot_lanes
from bench.network.training import LANES, contenders
from bench.network.workloads import workload
from bench.report import between_markers

RESULTS = ROOT / "bench" / "results"
TRAINING = RESULTS / "network_training.json"
LANE_RUNS = RESULTS / "network_allreduce.json"
LANE_PLOT = RESULTS / "network_allreduce.svg"
PLOT = RESULTS / "network_training.svg"
PAGE = ROOT / "docs" / "network.md"

#: Gains over one lane of our own that the vendor of AIACC-Training publishes, at a flow cap of
#: 30 % of the interface; and what users of torch should gain.
OVER_ONE_LANE = {"resnet50": 1.69, "vgg16": 1.77}
OVER_DDP = 3.0
#: How much slower than one lane the tuned number may be where flows are not capped.
TUNED_LOSS = 1.03

Run = Mapping[str, Any]


def step_s(run: Run, name: str) -> float | None:
    """Median seconds per step of a contender over all its jobs, None if it did not run."""
    samples = [value for job in run["seconds"].get(name, ()) for value in job]
    return median(samples) if samples else None


def training_table(runs: list[Run]) -> str:
    """Markdown: a line per workload and bed, a column per contender, then the ratios."""
    everybody = contenders()
    head = ["workload", "flow / interface", *(contender.title for contender in everybody)]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for run in runs:
        cells = [workload(run["workload"]).title, _caps(run)]
        for contender in everybody:
            value = step_s(run, contender.name)
            cells.append("" if value is None else f"{value:.2f} s{_chosen(run, contender.name)}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ratio_table(runs: list[Run]) -> str:
    """Markdown: what the gains are, and what they were to be."""
    lines = ["| workload | flow / interface | gain | factor | to reach | reached |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for run in runs:
        for what, value, limit, good in _ratios(run):
            reached = "" if good is None else "yes" if good else "**no**"
            title = workload(run["workload"]).title
            lines.append(
                f"| {title} | {_caps(run)} | {what} | {value:.2f}x | {limit} | {reached} |"
            )
    return "\n".join(lines)


def _ratios(run: Run) -> list[tuple[str, float, str, bool | None]]:
    """What is compared, the factor, the bar as text and whether it is reached."""
    times = {contender.name: step_s(run, contender.name) for contender in contenders()}
    ours = {lanes: times[f"lanes{lanes}"] for lanes in LANES}
    found = {lanes: value for lanes, value in ours.items() if value is not None}
    one, auto = ours[1], times["auto"]
    rows: list[tuple[str, float, str, bool | None]] = []
    if not found:
        return rows
    best = min(found, key=lambda lanes: found[lanes])
    if not run["bed"]["flow_mbit"]:
        if one is not None and auto is not None:
            value = auto / one
            rows.append(("time of the tuned number over that of one lane", value,
                         f"<= {TUNED_LOSS:g}x", value <= TUNED_LOSS))  # fmt: skip
        return rows
    if one is not None:
        bar = OVER_ONE_LANE.get(run["workload"])
        value = one / found[best]
        rows.append((f"{best} lanes over 1", value, "" if bar is None else f">= {bar:g}x",
                     None if bar is None else value >= bar))  # fmt: skip
    for peer, title, bar in (
        ("ddp", "DDP/gloo", OVER_DDP),
        ("ddp_multi", "DDP/gloo with the interface listed 4 times", 1.0),
    ):
        other = times[peer]
        if other is not None:
            value = other / found[best]
            rows.append((f"{best} lanes over {title}", value, f">= {bar:g}x", value >= bar))
    return rows


def provenance(runs: list[Run], file: Path) -> str:
    """Markdown: when, where and from what; ``file`` has the samples."""
    commits = sorted({run["commit"][:12] for run in runs})
    first, last = min(run["when"] for run in runs), max(run["when"] for run in runs)
    machine, versions = runs[0]["machine"], runs[0]["versions"]
    return (
        f"Measured {first} to {last} at commit {', '.join(commits)} on {machine['cpu']}, "
        f"{machine['cores']} cores, Linux {machine['kernel']}, torch {versions['torch']}. "
        f"Raw samples: `{file.relative_to(ROOT)}`."
    )


def plot(runs: list[Run], path: Path) -> None:
    """One panel per run: time per step over lanes, and the peers as lines. Needs matplotlib."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("svg")
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    figure, axes = pyplot.subplots(1, len(runs), figsize=(4 * len(runs), 3.4), squeeze=False)
    for axis, run in zip(axes[0], runs, strict=True):
        points = [(lanes, step_s(run, f"lanes{lanes}")) for lanes in LANES]
        known = [(lanes, value) for lanes, value in points if value is not None]
        axis.plot(*zip(*known, strict=True), marker="o", label="aiacc")
        for peer, style in (("ddp", "--"), ("ddp_multi", ":")):
            value = step_s(run, peer)
            if value is not None:
                title = next(one.title for one in contenders() if one.name == peer)
                axis.axhline(value, linestyle=style, color="grey", label=title)
        axis.set_xscale("log", base=2)
        axis.set_xticks(LANES, [str(lanes) for lanes in LANES])
        axis.set_ylim(bottom=0)
        axis.set_xlabel("lanes")
        axis.set_ylabel("s per step")
        axis.set_title(f"{run['workload']}, {_caps(run)}", fontsize=9)
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def training_text(runs: list[Run]) -> str:
    """Markdown: times per step, and what they gain."""
    return f"{training_table(runs)}\n\n{ratio_table(runs)}"


def main() -> int:
    """Write the tables between the marks of the page, and the plot."""
    parser = argparse.ArgumentParser(prog="python -m bench.network.report", description=__doc__)
    parser.add_argument("--write", action="store_true", help="update docs/network.md and the plot")
    options = parser.parse_args()
    page = PAGE.read_text()
    for mark, file, text_of, plot_of, picture in (
        ("bench:network-lanes", LANE_RUNS, lanes_text, plot_lanes, LANE_PLOT),
        ("bench:network-training", TRAINING, training_text, plot, PLOT),
    ):
        if not file.exists():
            continue
        runs = json.loads(file.read_text())["runs"]
        text = f"{text_of(runs)}\n\n{provenance(runs, file)}"
        if options.write:
            page = between_markers(page, text, str(PAGE), mark)
            plot_of(runs, picture)
        else:
            print(text, end="\n\n")
    if options.write:
        PAGE.write_text(page)
    return 0


def _caps(run: Run) -> str:
    bed = run["bed"]
    flow = f"{bed['flow_mbit']:g}" if bed["flow_mbit"] else "no cap"
    return f"{flow} / {bed['nic_mbit']:g} Mbit/s" if bed["nic_mbit"] else f"{flow} / no cap"


def _chosen(run: Run, name: str) -> str:
    if name != "auto" or not run["lanes"].get(name):
        return ""
    return f" ({', '.join(str(lanes) for lanes in sorted(set(run['lanes'][name])))} lanes)"


if __name__ == "__main__":
    sys.exit(main())
