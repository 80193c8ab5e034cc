"""The table and the plot of docs/compression.md about trainings that end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.machine import ROOT
from bench.network.report import figures
from bench.network.runs import load
from bench.network.tables import provenance
from bench.report import between_markers, publish
from bench.training.compression.contenders import CONTENDERS, DIGITS, PLAIN, TEXT

RESULT = ROOT / "bench" / "results" / "compression_convergence.json"
PAGE = ROOT / "docs" / "compression.md"
_MARK = "bench:compression-convergence"
#: Share of the steps over which a final loss is averaged.
FINAL_SHARE = 0.1
#: In percent: how much worse than dense a final loss may be. And as a factor: the loss to which
#: bytes are counted, of which so many intervals have to be the mean.
BAR, TARGET, SMOOTHED = 1.0, 1.05, 5
_TITLES = {DIGITS: "digits", TEXT: "text", PLAIN: "text, no momentum"}

Run = dict[str, Any]


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
    """Markdown: a line for each contender of a training. Pure."""
    head = (
        *("training", "ranks", "gradients as", "seeds", "final loss", "more than float32"),
        *("within 1 %", "held-out loss", "more than float32", "KiB per step", "MiB to target"),
    )
    rows = [list(head), ["---"] * len(head)]
    for (workload, ranks, steps), group in groups(found).items():
        for one in CONTENDERS:
            mine = [run for run in group if run["task"]["contender"] == one.name]
            if not mine:
                continue
            final = [gap_of(run, group, final_loss) for run in mine]
            held_out = [gap_of(run, group, held_out_loss) for run in mine]
            rows.append(
                [
                    f"{_TITLES[workload]}, {steps} steps",
                    str(ranks),
                    one.title,
                    str(len(mine)),
                    f"{fmean(map(final_loss, mine)):.4f}",
                    "" if one.name == "dense" else _gaps(final),
                    "" if one.name == "dense" else "yes" if fmean(final) <= BAR else "**no**",
                    f"{fmean(map(held_out_loss, mine)):.4f}",
                    "" if one.name == "dense" else _gaps(held_out),
                    f"{fmean(sum(run['bytes']) / run['task']['steps'] / 1024 for run in mine):.1f}",
                    _bytes_text([bytes_to_target(run, group) for run in mine]),
                ]
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def groups(found: Sequence[Run]) -> dict[tuple[str, int, int], list[Run]]:
    """Runs by workload, ranks and steps; only those whose seed float32 has run with, too."""
    by_key: dict[tuple[str, int, int], list[Run]] = {}
    for run in found:
        task = run["task"]
        by_key.setdefault((task["workload"], task["ranks"], task["steps"]), []).append(run)
    return {
        key: [run for run in group if dense_of(run, group) is not None]
        for key, group in sorted(by_key.items())
    }


def dense_of(run: Run, group: Sequence[Run]) -> Run | None:
    """The run of float32 with the same seed, parameters and data."""
    for other in group:
        task = other["task"]
        if task["contender"] == "dense" and task["seed"] == run["task"]["seed"]:
            return other
    return None


def final_loss(run: Run) -> float:
    """Mean training loss over the last tenth of the steps."""
    last = max(1, round(FINAL_SHARE * len(run["losses"])))
    return fmean(run["losses"][-last:])


def held_out_loss(run: Run) -> float:
    """Loss after the last step."""
    return float(run["held_out"])


def gap_of(run: Run, group: Sequence[Run], loss: Any) -> float:
    """By how many percent the loss is higher than that of float32 with the same seed."""
    dense = loss(dense_of(run, group))
    return float(100 * (loss(run) - dense) / dense)


def bytes_to_target(run: Run, group: Sequence[Run]) -> float | None:
    """Bytes that a rank has encoded when losses come to TARGET of float32's; None: never."""
    dense = dense_of(run, group)
    assert dense is not None
    target = TARGET * final_loss(dense)
    losses = run["losses"]
    for end, total in enumerate(accumulate(run["bytes"]), 1):
        if end >= SMOOTHED and fmean(losses[end - SMOOTHED : end]) <= target:
            return float(total)
    return None


def _gaps(gaps: Sequence[float]) -> str:
    return f"{fmean(gaps):+.2f} % ({min(gaps):+.1f} to {max(gaps):+.1f})"


def _bytes_text(counts: Sequence[float | None]) -> str:
    known = [count for count in counts if count is not None]
    return f"{fmean(known) / 2**20:.1f}" if len(known) == len(counts) else "never"


def plot(found: Sequence[Run]) -> Any:
    """A column per training: loss over steps, and over what a rank has encoded."""
    columns = groups(found)
    figure, axes = figures().subplots(
        2, len(columns), figsize=(4.2 * len(columns), 6.4), squeeze=False
    )
    for column, ((workload, ranks, total_steps), group) in enumerate(columns.items()):
        for number, one in enumerate(CONTENDERS):
            mine = [run for run in group if run["task"]["contender"] == one.name]
            if not mine:
                continue
            interval = mine[0]["interval"]
            curves = list(zip(*(_smoothed(run["losses"]) for run in mine), strict=True))
            steps = [interval * (end + SMOOTHED) for end in range(len(curves))]
            sent = [total / 2**20 for total in accumulate(mine[0]["bytes"])][SMOOTHED - 1 :]
            for axis, places in zip(axes[:, column], (steps, sent), strict=True):
                color = f"C{number}"
                axis.plot(places, list(map(fmean, curves)), label=one.title, color=color)
                axis.fill_between(
                    places, list(map(min, curves)), list(map(max, curves)), alpha=0.2, color=color
                )
        top, bottom = axes[:, column]
        top.set_title(f"{_TITLES[workload]}, {ranks} ranks, {total_steps} steps", fontsize=9)
        top.set_xlabel("steps")
        bottom.set_xlabel("MiB of encoded gradients, by one rank")
        bottom.set_xscale("log")
        for axis in (top, bottom):
            axis.set_yscale("log" if workload == DIGITS else "linear")
            axis.set_ylabel("training loss")
    axes[0][0].legend(fontsize=7)
    return figure


def _smoothed(losses: Sequence[float]) -> list[float]:
    ends = range(SMOOTHED, len(losses) + 1)
    return [fmean(losses[end - SMOOTHED : end]) for end in ends]
