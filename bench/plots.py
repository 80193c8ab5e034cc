"""Figures of results: the same file for the same figures, ours and peers told apart by colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.record import Run, samples

OURS, PEERS = "tab:blue", "tab:orange"
#: Inches: at 100 dots each, what a page shows of it.
WIDTH = 9.0


def pyplot() -> Any:
    """Matplotlib that draws into files."""
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "aiacc"
    from matplotlib import pyplot as found  # type: ignore[import-not-found,unused-ignore]

    return found


def panels(count: int, columns: int = 3, height: float = 3.2) -> tuple[Any, list[Any]]:
    """A figure with so many axes, in rows."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure, axes = pyplot().subplots(rows, columns, figsize=(WIDTH, height * rows), squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def bars(axis: Any, run: Run, titles: Mapping[str, str], ours: Sequence[str]) -> None:
    """A bar for each contender of a cell, with the range of its jobs' medians."""
    shown = [key for key in titles if key in run["samples"]]
    for at, key in enumerate(shown):
        middle, jobs = median(samples(run, key)), [median(job) for job in run["samples"][key]]
        error = [[max(0.0, middle - min(jobs))], [max(0.0, max(jobs) - middle)]]
        axis.barh(at, middle, xerr=error, color=OURS if key in ours else PEERS)
    axis.set_yticks(range(len(shown)), [titles[key] for key in shown], size=7)
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.set_xlabel(run["unit"])
    axis.set_title(run["title"], fontsize=8, wrap=True)


def save(figure: Any, path: Path) -> None:
    """Write the figure; nothing in the file says when."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
