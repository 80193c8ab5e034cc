"""The tables and the plot of docs/planning.md that come from the bed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.machine import ROOT
from bench.network.planning.contenders import CONTENDERS
from bench.network.planning.tables import (
    LEGEND,
    Run,
    buckets_table,
    exposed_s,
    exposed_table,
    left_out,
    predicted_s,
    spread_s,
    steps_table,
    unsent_lines,
    verdicts_table,
)
from bench.network.report import figures
from bench.network.runs import load
from bench.network.tables import provenance
from bench.report import publish

RESULT = ROOT / "bench" / "results" / "network_planning.json"
PAGE = ROOT / "docs" / "planning.md"
MARK = "bench:network-planning"


def report(path: Path, *, write: bool) -> None:
    """Print the tables of a result file, or put them into the page and draw the plot."""
    runs = load(path)
    publish(tables(runs), PAGE, MARK, path, lambda: plot(runs), write=write)


def tables(runs: Sequence[Run]) -> str:
    """Markdown: everything between the marks. Pure."""
    parts = [
        "Milliseconds of a step:",
        steps_table(runs),
        LEGEND,
        "Milliseconds of communication that computation does not hide, measured / predicted as the "
        "core sends it (as the planner sees it, one bucket at a time; `lanes(4)` four, and what no "
        "such plan beats); bold where they are apart by more than 15 %, and by more than noise:",
        exposed_table(runs),
        unsent_lines(runs),
        "What was expected:",
        verdicts_table(runs),
        "Buckets of the plans:",
        buckets_table(runs),
    ]
    missing = left_out(runs)
    if missing:
        parts += ["Not measured:", missing]
    return "\n\n".join([*filter(None, parts), provenance(list(runs))])


def plot(runs: Sequence[Run]) -> Any:
    """One panel per cell: exposed communication as bars, its prediction as a line over each."""
    columns = min(3, len(runs))
    rows = -(-len(runs) // columns)
    figure, axes = figures().subplots(
        rows, columns, figsize=(4.2 * columns, 3.2 * rows), squeeze=False
    )
    for axis in axes.flat[len(runs) :]:
        axis.set_visible(False)
    for axis, run in zip(axes.flat, runs, strict=False):
        shown = [one for one in CONTENDERS if exposed_s(run, one.name) is not None]
        for at, one in enumerate(shown):
            measured = exposed_s(run, one.name) or 0.0
            axis.barh(at, measured, xerr=spread_s(run, one.name) / 2, color="tab:blue",
                      label="measured" if at == 0 else None)  # fmt: skip
            predicted = predicted_s(run, one)
            if predicted is not None:
                axis.plot([predicted] * 2, [at - 0.4, at + 0.4], color="black",
                          label="predicted" if one.name == "optimal" else None)  # fmt: skip
        axis.set_yticks(range(len(shown)), [one.title.replace("`", "") for one in shown], size=7)
        axis.invert_yaxis()
        axis.set_xlabel("s of exposed communication per step")
        cell = run["cell"]
        title = (
            f"{cell['workload']}, {cell['mbit']:g} Mbit/s, {cell['delay_ms']:g} ms, {cell['unit']}"
        )
        axis.set_title(f"{title}; {run['compute_s']:.2f} s of computation", fontsize=8)
    axes[0][0].legend(fontsize=7)
    return figure
