"""Timelines and scaling as pictures. Needs matplotlib (pip install matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiacc.planning.simulate import Timeline, rows_of


def gantt(timelines: Mapping[str, Timeline], path: Path, title: str) -> None:
    """One row for each resource of each timeline, by name, over milliseconds."""
    figure, axes = _figure(title)
    rows: list[str] = []
    for name, timeline in timelines.items():
        for resource in timeline.resources:
            intervals = [i for i in timeline.intervals if i.activity.resource == resource]
            # Those at a time share the row.
            lanes = rows_of([(i.start_s, i.end_s) for i in intervals])
            height = 0.8 / (max(lanes, default=0) + 1)
            for lane in set(lanes):
                # One artist for all: matplotlib takes milliseconds for each.
                axes.broken_barh(
                    [
                        (interval.start_s * 1e3, (interval.end_s - interval.start_s) * 1e3)
                        for interval, its_lane in zip(intervals, lanes, strict=True)
                        if its_lane == lane and interval.end_s > interval.start_s
                    ],
                    (len(rows) - 0.4 + lane * height, height),
                    facecolors="tab:blue" if resource == "network" else "tab:green",
                    edgecolors="white",
                    linewidth=0.3,
                )
            rows.append(f"{name}: {resource}")
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("ms (simulated)")
    figure.set_size_inches(10, 1 + 0.5 * len(rows))
    figure.savefig(path, dpi=120, bbox_inches="tight")


def scaling(
    worlds: Sequence[int], efficiency: Mapping[str, Sequence[float]], path: Path, title: str
) -> None:
    """Scaling efficiency over the number of ranks, a line for each planner."""
    figure, axes = _figure(title)
    for name, values in efficiency.items():
        axes.plot(worlds, [100 * value for value in values], marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(worlds, [str(world) for world in worlds])
    axes.set_ylim(0, 105)
    axes.set_xlabel("ranks")
    axes.set_ylabel("scaling efficiency, % (simulated)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def stacked(
    rows: Mapping[str, Mapping[str, float]],
    path: Path,
    title: str,
    measured: Mapping[str, float] | None = None,
) -> None:
    """A bar for each row: seconds by part, one behind the other, over milliseconds.

    ``measured``: seconds of some rows that are marked, for comparison.
    """
    figure, axes = _figure(title)
    before = [0.0] * len(rows)
    for part in dict.fromkeys(part for parts in rows.values() for part in parts):
        values = [1e3 * parts.get(part, 0.0) for parts in rows.values()]
        axes.barh(range(len(rows)), values, left=before, label=part, edgecolor="white")
        before = [one + other for one, other in zip(before, values, strict=True)]
    names = list(rows)
    if measured:
        axes.plot(
            [1e3 * seconds for seconds in measured.values()],
            [names.index(name) for name in measured],
            "k|",
            markersize=14,
            label="published",
        )
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlabel("ms (simulated)")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.6 / (1 + 0.3 * len(rows))), ncols=3)
    figure.set_size_inches(10, 1 + 0.3 * len(rows))
    figure.savefig(path, dpi=120, bbox_inches="tight")


def _figure(title: str) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("plots need matplotlib: pip install 'matplotlib>=3.7'") from error
    figure = Figure(figsize=(8, 5))
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes
