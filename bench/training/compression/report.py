"""The table and the plot of docs/compression.md about trainings that end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.machine import ROOT
from bench.network.report import figures
from bench.network.runs import load
from bench.network.tables import provenance
from bench.report import between_markers, publish
from bench.training.compression.contenders import (
    CONTENDERS,
    DIGITS,
    PLAIN,
    TEXT,
    Contender,
    Task,
)

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
    capped = [run for run in found if run["task"].get("mbit")]
    seconds = [seconds_table(capped)] if capped else []
    return "\n\n".join([table(found), *seconds, provenance(list(found))])


def table(found: Sequence[Run]) -> str:
    """Markdown: a line for each contender of a training. Pure."""
    head = (
        *("training", "ranks", "gradients as", "seeds", "final loss", "more than float32"),
        *("within 1 %", "held-out loss", "more than float32", "KiB per step", "MiB to target"),
    )
    rows = [list(head), ["---"] * len(head)]
    for (workload, ranks, steps, mbit), group in groups(found).items():
        for one, mine in _by_contender([] if mbit else group):
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
                    _text(_mean([to_target(run, group, run["bytes"]) for run in mine]), 2**20),
                ]
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def seconds_table(found: Sequence[Run]) -> str:
    """Markdown: a line for each contender of a training on a capped network. Pure."""
    head = ("training", "hosts", "Mbit/s", "gradients as", "seeds", "ms per step")
    head += ("seconds to target", "of float32's")
    rows = [list(head), ["---"] * len(head)]
    for (workload, ranks, steps, mbit), group in groups(found).items():
        dense: float | None = None
        for one, mine in _by_contender(group):
            took = _mean([to_target(run, group, run["interval_seconds"]) for run in mine])
            dense = took if one.name == "dense" else dense
            each = [median(run["interval_seconds"]) / run["interval"] for run in mine]
            rows.append(
                [
                    *(f"{_TITLES[workload]}, {steps} steps", str(ranks), f"{mbit:g}", one.title),
                    *(str(len(mine)), f"{1000 * fmean(each):.1f}", _text(took, 1.0)),
                    "" if took is None or dense is None else f"{took / dense:.2f}",
                ]
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _by_contender(group: Sequence[Run]) -> Iterator[tuple[Contender, list[Run]]]:
    for one in CONTENDERS:
        mine = [run for run in group if run["task"]["contender"] == one.name]
        if mine:
            yield one, mine


def groups(found: Sequence[Run]) -> dict[tuple[str, int, int, float], list[Run]]:
    """Runs by workload, ranks, steps and rate; only those whose seed float32 has run with, too."""
    by_key: dict[tuple[str, int, int, float], list[Run]] = {}
    for run in found:
        task = Task(**run["task"])
        by_key.setdefault((task.workload, task.ranks, task.steps, task.mbit), []).append(run)
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


def to_target(run: Run, group: Sequence[Run], amounts: Sequence[float]) -> float | None:
    """The sum of what intervals took until losses come to TARGET of float32's; None: never."""
    dense = dense_of(run, group)
    assert dense is not None
    target = TARGET * final_loss(dense)
    losses = run["losses"]
    for end, total in enumerate(accumulate(amounts), 1):
        if end >= SMOOTHED and fmean(losses[end - SMOOTHED : end]) <= target:
            return float(total)
    return None


def _gaps(gaps: Sequence[float]) -> str:
    return f"{fmean(gaps):+.2f} % ({min(gaps):+.1f} to {max(gaps):+.1f})"


def _mean(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return fmean(known) if len(known) == len(amounts) else None


def _text(amount: float | None, unit: float) -> str:
    return "never" if amount is None else f"{amount / unit:.1f}"


def plot(found: Sequence[Run]) -> Any:
    """A column per training: loss over steps, and over what a rank has encoded or over seconds."""
    columns = groups(found)
    figure, axes = figures().subplots(
        2, len(columns), figsize=(4.2 * len(columns), 6.4), squeeze=False
    )
    for column, ((workload, ranks, total_steps, mbit), group) in enumerate(columns.items()):
        for one, mine in _by_contender(group):
            interval = mine[0]["interval"]
            curves = list(zip(*(_smoothed(run["losses"]) for run in mine), strict=True))
            steps = [interval * (end + SMOOTHED) for end in range(len(curves))]
            spent = mine[0]["interval_seconds"] if mbit else [n / 2**20 for n in mine[0]["bytes"]]
            spent = list(accumulate(spent))[SMOOTHED - 1 :]
            for axis, places in zip(axes[:, column], (steps, spent), strict=True):
                color = f"C{CONTENDERS.index(one)}"
                axis.plot(places, list(map(fmean, curves)), label=one.title, color=color)
                axis.fill_between(
                    places, list(map(min, curves)), list(map(max, curves)), alpha=0.2, color=color
                )
        top, bottom = axes[:, column]
        rate = f", {mbit:g} Mbit/s" if mbit else ""
        top.set_title(f"{_TITLES[workload]}, {ranks} ranks, {total_steps} steps{rate}", fontsize=9)
        top.set_xlabel("steps")
        bottom.set_xlabel("seconds" if mbit else "MiB of encoded gradients, by one rank")
        bottom.set_xscale("linear" if mbit else "log")
        for axis in (top, bottom):
            axis.set_yscale("log" if workload == DIGITS else "linear")
            axis.set_ylabel("training loss")
    axes[0][0].legend(fontsize=7)
    return figure


def _smoothed(losses: Sequence[float]) -> list[float]:
    ends = range(SMOOTHED, len(losses) + 1)
    return [fmean(losses[end - SMOOTHED : end]) for end in ends]
