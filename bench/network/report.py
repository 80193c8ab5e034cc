"""``python -m bench.network.report``: tables and plots of docs/network.md, from results."""

import argparse
import sys
from typing import Any

from bench.machine import ROOT
from bench.network.ablation import RESULTS as ABLATION
from bench.network.ablation import ablation_table
from bench.network.planning.idle import RESULTS as IDLE
from bench.network.planning.idle import idle_table
from bench.network.runs import load
from bench.network.tables import (
    Run,
    allreduce_table,
    caps_text,
    compression_table,
    faults_table,
    faults_text,
    lines_of,
    provenance,
    ratio_table,
    step_s,
    training_table,
    wan_table,
)
from bench.network.training import LANES, contenders
from bench.network.units import RESULTS as UNITS
from bench.network.units import units_table
from bench.report import between_markers

RESULTS = ROOT / "bench" / "results"
TRAINING = RESULTS / "network_training.json"
ALLREDUCE = RESULTS / "network_allreduce.json"
ENGINES = RESULTS / "network_engines.json"
FAULTS = RESULTS / "network_faults.json"
WAN = RESULTS / "network_wan.json"
PAGE = ROOT / "docs" / "network.md"


def main() -> int:
    """Write the tables between the marks of the page, and the plot."""
    parser = argparse.ArgumentParser(prog="python -m bench.network.report", description=__doc__)
    parser.add_argument("--write", action="store_true", help="update docs/network.md and the plot")
    options = parser.parse_args()
    if not options.write:
        print(*sections().values(), sep="\n\n", end="\n\n")
        return 0
    PAGE.write_text(with_sections(PAGE.read_text()))
    for path, plot in ((TRAINING, plot_training), (ALLREDUCE, plot_allreduce)):
        figure = plot(load(path))
        figure.tight_layout()
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return 0


def with_sections(page: str) -> str:
    """``page`` with the tables of the result files."""
    for mark, text in sections().items():
        page = between_markers(page, text, str(PAGE), mark)
    return page


def sections() -> dict[str, str]:
    """Markdown of the result files, by the mark of its place."""
    found = {}
    for name, path, parts in (
        ("allreduce", ALLREDUCE, [allreduce_table]),
        ("engines", ENGINES, [allreduce_table, compression_table]),
        ("training", TRAINING, [training_table, ratio_table]),
        ("faults", FAULTS, [faults_table, faults_text]),
        ("wan", WAN, [wan_table]),
        ("ablation", ABLATION, [ablation_table]),
        ("units", UNITS, [units_table]),
        ("idle", IDLE, [idle_table]),
    ):
        runs = load(path)
        found[f"bench:network-{name}"] = "\n\n".join(
            [*(part(runs) for part in parts), provenance(runs)]
        )
    return found


def plot_training(runs: list[Run]) -> Any:
    """One panel per run: time per step over lanes, and the peers as lines."""
    pyplot = figures()
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
        _label(axis, "s per step", f"{run['workload']}, {caps_text(run)}")
    axes[0][0].legend(fontsize=7)
    return figure


def plot_allreduce(runs: list[Run]) -> Any:
    """Bus bandwidth over lanes, a curve per engine and number of hosts, and the caps' limit."""
    figure, axis = figures().subplots(figsize=(5, 3.4))
    lines = lines_of(runs)
    for rows in lines:
        if rows[0]["bed"]["slow"] or caps_text(rows[0]) != caps_text(lines[0][0]):
            continue
        ordered = sorted(rows, key=lambda row: int(row["lanes"]))
        axis.plot([row["lanes"] for row in ordered], [row["busbw_mbit"] for row in ordered],
                  marker="o", label=f"{rows[0]['engine']}, {rows[0]['hosts']} hosts")  # fmt: skip
        limits = [row["limit_mbit"] for row in ordered]
    axis.plot([row["lanes"] for row in ordered], limits, linestyle="--", color="grey", label="caps")
    _label(axis, "bus bandwidth, Mbit/s", "all-reduce of 64 MiB")
    axis.legend(fontsize=7)
    return figure


def _label(axis: Any, what: str, title: str) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(LANES, [str(lanes) for lanes in LANES])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("lanes")
    axis.set_ylabel(what)
    axis.set_title(title, fontsize=9)


def figures() -> Any:
    """Matplotlib that draws the same file for the same figures."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "aiacc"
    from matplotlib import pyplot  # type: ignore[import-not-found,unused-ignore]

    return pyplot


if __name__ == "__main__":
    sys.exit(main())
