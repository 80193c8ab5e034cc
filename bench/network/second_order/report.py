"""The table of docs/kfac.md that comes from the bed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiacc.kfac.methods import D_KFAC, OURS, SPD_KFAC
from bench.machine import ROOT
from bench.network.runs import load
from bench.network.second_order.cells import TITLES
from bench.network.tables import provenance
from bench.report import publish

RESULT = ROOT / "bench" / "results" / "network_kfac.json"
PAGE = ROOT / "docs" / "kfac.md"
MARK = "bench:network-kfac"
#: Of the paper: SPD-KFAC's step over D-KFAC's, for ResNet-50.
GOAL = 0.79
#: By how much exposed communication may be apart from its prediction.
CLOSE = 0.15
#: What is hidden by prediction leaves nothing to compare with: then a share of the step counts.
LEAST = 0.05

Run = dict[str, Any]


def report(path: Path, *, write: bool) -> None:
    """Print the table of a result file, or put it into the page."""
    publish(tables(load(path)), PAGE, MARK, path, None, write=write)


def tables(runs: Sequence[Run]) -> str:
    """Markdown: everything between the marks. Pure."""
    lines = [
        "| hosts, Mbit/s, dimensions | | step, s | predicted | / D-KFAC | exposed, s | predicted "
        "| apart |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_line(run, title) for run in runs for title in TITLES]
    legend = (
        f"Apart: of the prediction, or of {LEAST:.0%} of the step where less than that is "
        "predicted to be exposed. Medians."
    )
    return "\n".join([*lines, "", legend, "", *map(verdict, runs), "", provenance(list(runs))])


def step_s(run: Run, title: str) -> float:
    """Median of all steps."""
    return statistics.median(s for job in run["jobs"] for s in job[title]["seconds"])


def exposed_s(run: Run, title: str) -> float:
    """What a step takes beyond one in which nothing is sent."""
    unsent = statistics.median(s for job in run["jobs"] for s in job[title]["unsent_s"])
    return step_s(run, title) - unsent


def apart(run: Run, title: str) -> float:
    """Exposed communication, measured less predicted, over predicted or a share of the step."""
    predicted = run["predicted"][title]
    beside = max(float(predicted["exposed_s"]), LEAST * float(predicted["seconds"]))
    return (exposed_s(run, title) - float(predicted["exposed_s"])) / beside


def verdict(run: Run) -> str:
    """What was expected of a cell, in a line."""
    ratio = step_s(run, OURS) / step_s(run, D_KFAC.title)
    beside = step_s(run, OURS) / step_s(run, SPD_KFAC.title)
    off, rest = (
        abs(apart(run, OURS)),
        max(abs(apart(run, title)) for title in TITLES if title != OURS),
    )
    return (
        f"* {_where(run)}: ours takes {ratio:.2f} of D-KFAC (goal {GOAL}: {_yes(ratio <= GOAL)}), "
        f"{beside:.2f} of SPD-KFAC (goal 1: {_yes(beside <= 1)}); its exposed communication is "
        f"{off:.0%} apart from its prediction (goal {CLOSE:.0%}: {_yes(off <= CLOSE)}), that of "
        f"the others up to {rest:.0%}."
    )


def _line(run: Run, title: str) -> str:
    predicted = run["predicted"][title]
    ratio = step_s(run, title) / step_s(run, D_KFAC.title)
    return (
        f"| {_where(run)} | {title} | {step_s(run, title):.3f} | {predicted['seconds']:.3f} "
        f"| {ratio:.2f} | {exposed_s(run, title):.3f} | {predicted['exposed_s']:.3f} "
        f"| {apart(run, title):+.0%} |"
    )


def _where(run: Run) -> str:
    cell = run["cell"]
    return f"{cell['hosts']}, {cell['mbit']:g}, 1/{cell['shrink']}"


def _yes(good: bool) -> str:
    return "yes" if good else "**no**"
