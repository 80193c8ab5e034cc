"""The table and the plot of docs/kfac.md about seconds and steps to a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.machine import ROOT
from bench.network.report import figures
from bench.network.runs import load
from bench.network.tables import provenance
from bench.report import between_markers, publish
from bench.second_order.contenders import CONTENDERS
from bench.second_order.workloads import WORKLOADS, Workload

PAGE = ROOT / "docs" / "kfac.md"
_MARK = "bench:kfac-convergence"

Run = dict[str, Any]


def best_of(trials: Sequence[Run]) -> Run:
    """The trial that reached the target in the least time; if none did, that which came closest."""
    return min(
        trials,
        key=lambda run: (
            not run["reached"],
            run["curve"][-1][1] if run["reached"] else lowest(run),
        ),
    )


def lowest(run: Run) -> float:
    """The least that was measured, infinite if that was nothing finite."""
    return float("inf") if run["lowest"] is None else float(run["lowest"])


def report(path: Path, *, write: bool) -> None:
    """Print the table of a result file, or put it into the page and draw the plot."""
    found = load(path)
    publish(section(found), PAGE, _MARK, path, lambda: plot(found), write=write)


def with_section(page: str, found: Sequence[Run]) -> str:
    """The page with the table of these runs."""
    return between_markers(page, section(found), str(PAGE), _MARK)


def section(found: Sequence[Run]) -> str:
    """Markdown: the table, and where it was measured. Pure."""
    return "\n\n".join([table(found), provenance(list(found))])


def table(found: Sequence[Run]) -> str:
    """Markdown: a line for each contender of a workload. Pure."""
    head = (
        *("training", "optimizer", "trials that reached it", "best trial", "seeds that reached it"),
        *("CPU seconds", "steps", "ms per step", "least value"),
    )
    rows = [list(head), ["---"] * len(head)]
    for work in WORKLOADS:
        for one in CONTENDERS:
            trials, others = runs_of(found, work, one.name)
            if not trials or not others:
                continue
            tuned = ", ".join(f"{name} {value:g}" for name, value in others[0]["tuned"].items())
            good = [run["curve"][-1] for run in others if run["reached"]]
            every = [run["curve"][-1] for run in others]
            rows.append(
                [
                    work.title,
                    one.title,
                    f"{sum(run['reached'] for run in trials)} of {len(trials)}",
                    tuned,
                    f"{len(good)} of {len(others)}",
                    _spread([point[1] for point in good], "{:.2f}", len(others)),
                    _spread([point[0] for point in good], "{:.0f}", len(others)),
                    f"{1e3 * fmean(point[1] / point[0] for point in every):.2f}",
                    f"{fmean(map(lowest, others)):.4g}",
                ]
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def runs_of(found: Sequence[Run], work: Workload, name: str) -> tuple[list[Run], list[Run]]:
    """Trials of a contender in a workload, and runs of the best with other seeds."""
    mine = [run for run in found if (run["workload"], run["contender"]) == (work.name, name)]
    return [run for run in mine if run["seed"] == 0], [run for run in mine if run["seed"] != 0]


def _spread(values: Sequence[float], form: str, count: int) -> str:
    """Mean and range, if all seeds reached the target; else what is known of them."""
    if not values:
        return "never"
    ends = f"{form.format(min(values))} to {form.format(max(values))}"
    if len(values) < count:
        return f"{ends}, not always"
    return f"{form.format(fmean(values))} ({ends})"


def plot(found: Sequence[Run]) -> Any:
    """A column per workload: what is measured over CPU seconds, and over steps."""
    figure, axes = figures().subplots(
        2, len(WORKLOADS), figsize=(4.6 * len(WORKLOADS), 6.4), squeeze=False
    )
    for column, work in enumerate(WORKLOADS):
        for number, one in enumerate(CONTENDERS):
            _, others = runs_of(found, work, one.name)
            for run in others:
                label = one.title if run is others[0] else None
                values = [point[3] for point in run["curve"]]
                for axis, place in zip(axes[:, column], (1, 0), strict=True):
                    places = [point[place] for point in run["curve"]]
                    axis.plot(places, values, label=label, color=f"C{number}", linewidth=0.8)
        for axis, title in zip(axes[:, column], ("CPU seconds", "steps"), strict=True):
            axis.axhline(work.target, linestyle="--", color="grey", linewidth=0.8)
            axis.set_xlabel(title)
            axis.set_ylabel("squared error" if work.name == "autoencoder" else "held-out error")
            axis.set_yscale("log")
            axis.set_xscale("log")
        axes[0][column].set_title(work.title, fontsize=9)
    axes[0][0].legend(fontsize=7)
    return figure
