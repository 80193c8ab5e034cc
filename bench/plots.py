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


def points(
    axis: Any,
    values: Mapping[str, Sequence[float]],
    ours: Sequence[str],
    limit: float | None = None,
) -> None:
    """A line of points for each title, one for each sample; what is above ``limit`` in words."""
    for at, (title, found) in enumerate(values.items()):
        shown = [value for value in found if limit is None or value <= limit]
        color = OURS if title in ours else PEERS
        axis.plot(shown, [at] * len(shown), "o", color=color, alpha=0.6, markersize=4)
        text = f"{len(found) - len(shown)} up to {max(found):,.0f} →" if found else "never"
        if len(shown) < len(found) or not found:
            place = axis.get_yaxis_transform()
            axis.text(0.99, at, text, size=7, ha="right", va="center", transform=place)
    axis.set_yticks(range(len(values)), list(values), size=7)
    axis.set_ylim(len(values) - 0.5, -0.5)
    axis.grid(axis="x", alpha=0.3)


def save(figure: Any, path: Path) -> None:
    """Write the figure; nothing in the file says when."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
