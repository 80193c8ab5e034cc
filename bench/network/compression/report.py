"""The table and the plot of docs/compression.md that come from the bed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiacc.compression.costs import Speeds
from bench.machine import ROOT
from bench.network.compression.cells import AUTO, CONTENDERS, Cell, Contender, predicted_s
from bench.network.report import figures
from bench.network.runs import load
from bench.network.tables import provenance
from bench.network.workloads import workload
from bench.report import publish

RESULT = ROOT / "bench" / "results" / "network_compression.json"
PAGE = ROOT / "docs" / "compression.md"
MARK = "bench:network-compression"

#: What "auto" must not be slower than.
DENSE = ("dense", "bf16")

Run = dict[str, Any]


def report(path: Path, *, write: bool) -> None:
    """Print the table of a result file, or put it into the page and draw the plot."""
    found = load(path)
    publish(tables(found), PAGE, MARK, path, lambda: plot(found), write=write)


def tables(found: Sequence[Run]) -> str:
    """Markdown: everything between the marks. Pure."""
    return "\n\n".join([table(found), automatic(found), provenance(list(found))])


def table(found: Sequence[Run]) -> str:
    """Markdown: seconds of a step, and what was predicted. Pure."""
    titles = [one.title for one in CONTENDERS]
    rows = [["model", "Mbit/s", *titles], ["---"] * (2 + len(titles))]
    for run in found:
        cell = run["cell"]
        cells = [_text(measured_s(run, one), prediction_s(run, one)) for one in CONTENDERS]
        rows.append([workload(cell["workload"]).title, f"{cell['mbit']:g}", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def automatic(found: Sequence[Run]) -> str:
    """Markdown: how "auto" stands beside the best of what loses nothing or little. Pure."""
    by_name = {one.name: one for one in CONTENDERS}
    lines = []
    for run in found:
        auto = measured_s(run, by_name[AUTO])
        dense = [s for name in DENSE if (s := measured_s(run, by_name[name])) is not None]
        if auto is not None and dense:
            best, cell = min(dense), run["cell"]
            lines.append(
                f"* {workload(cell['workload']).title}, {cell['mbit']:g} Mbit/s: {auto:.2f} s with "
                f"{by_name[AUTO].title}, {auto / best:.2f}x the best of float32 and bf16"
            )
            lines += [f"  (`{line}`)" for line in said(run)]
    return "\n".join(lines)


def said(run: Run) -> list[str]:
    """What "auto" has said it chose."""
    return [line for job in run["jobs"] for line in job.get(AUTO, {}).get("said", [])]


def measured_s(run: Run, one: Contender) -> float | None:
    """Median over the steps of all rounds; None: it took no part."""
    seconds = [each for job in run["jobs"] for each in job.get(one.name, {}).get("seconds", [])]
    return statistics.median(seconds) if seconds else None


def prediction_s(run: Run, one: Contender) -> float | None:
    """What the model of costs says for the whole model's gradients at once."""
    cell = Cell(run["cell"]["workload"], run["cell"]["mbit"])
    speeds = {name: Speeds(**speed) for name, speed in run["speeds"].items()}
    sizes = [math.prod(shape) for _, shape in cell.shapes]
    return predicted_s(one, sizes, cell.mbit, speeds)


def _text(measured: float | None, predicted: float | None) -> str:
    if measured is None:
        return ""
    return f"{measured:.2f}" + ("" if predicted is None else f" / {predicted:.2f}")


def plot(found: Sequence[Run]) -> Any:
    """One panel per cell: seconds of a step as bars, predictions as lines over them."""
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    figure, axes = figures().subplots(
        rows, columns, figsize=(4.6 * columns, 2.8 * rows), squeeze=False
    )
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, run in zip(axes.flat, found, strict=False):
        shown = [one for one in CONTENDERS if measured_s(run, one) is not None]
        for at, one in enumerate(shown):
            axis.barh(at, measured_s(run, one), color="tab:blue")
            predicted = prediction_s(run, one)
            if predicted is not None:
                axis.plot([predicted] * 2, [at - 0.4, at + 0.4], color="black")
        axis.set_yticks(range(len(shown)), [one.title for one in shown], fontsize=7)
        axis.invert_yaxis()
        cell = run["cell"]
        axis.set_title(f"{workload(cell['workload']).title}, {cell['mbit']:g} Mbit/s", fontsize=9)
        axis.set_xlabel("seconds of a step; line: predicted", fontsize=8)
    return figure
