"""Markdown of results, and its places in pages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from bench.machine import kind
from bench.record import Run, samples

#: Units that are shown by size, with the factor of each.
_SCALES = {
    "s": (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9)),
    "B": (("GB", 1e-9), ("MB", 1e-6), ("kB", 1e-3), ("B", 1.0)),
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; its cells are text."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def amount(value: float, unit: str) -> str:
    """Three significant digits; seconds by their size as s, ms, µs or ns, bytes as GB, MB or kB."""
    if unit in _SCALES:
        scaled = [(name, value * factor) for name, factor in _SCALES[unit]]
        unit, value = next((one for one in scaled if one[1] >= 1), scaled[-1])
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def spread(run: Run, contender: str) -> str:
    """The median of all samples, and in brackets that of the fastest and of the slowest job."""
    jobs = [median(job) for job in run["samples"][contender]]
    middle = amount(median(samples(run, contender)), run["unit"])
    if len(jobs) == 1:
        return middle
    low, high = (amount(value, run["unit"]) for value in (min(jobs), max(jobs)))
    return f"{middle} ({low} to {high})"


def ratio(run: Run, ours: str, theirs: str) -> float:
    """Median of ours over the median of theirs: less than 1 is where we are faster."""
    return median(samples(run, ours)) / median(samples(run, theirs))


def fastest(run: Run, contenders: Sequence[str]) -> str | None:
    """The contender with the least median; None if none of them was measured."""
    found = [name for name in contenders if name in run["samples"]]
    return min(found, key=lambda name: median(samples(run, name)), default=None)


def contest(
    runs: Sequence[Run], titles: Mapping[str, str], peers: Sequence[str], ours: Sequence[str]
) -> str:
    """A line for each contender of each cell, ours over the fastest peer, and CPU times if known.

    Args:
        runs: Cells, each with "title", "unit" and "samples"; less is better.
        titles: Contenders in the order of the lines, by key.
        peers: Keys of those that we are compared with.
        ours: Keys of aiacc's ways.
    """
    lines = []
    with_cpu = any("cpu" in run for run in runs)
    for run in runs:
        best = fastest(run, peers)
        for key, title in titles.items():
            if key not in run["samples"]:
                continue
            text = ""
            if key in ours and best is not None:
                text = f"{ratio(run, key, best):.2f}x"
            name = f"**{title}**" if key == best else title
            lines.append([run["title"], name, spread(run, key), text])
            if with_cpu:
                cpu = run.get("cpu", {}).get(key)
                lines[-1].append(amount(fmean(cpu), "s") if cpu else "")
    head = ["work", "contender", "median (of the jobs)", "over the fastest peer"]
    return table([*head, "CPU, all ranks"] if with_cpu else head, lines)


def matrix(
    runs: Sequence[Run], titles: Mapping[str, str], peers: Sequence[str], ours: Sequence[str] = ()
) -> str:
    """A line for each cell and a column for each contender; the fastest peer is bold.

    With ``ours`` the last column has the fastest of them over the fastest peer.
    """
    lines = []
    for run in runs:
        best, mine, cells = fastest(run, peers), fastest(run, ours), [run["title"]]
        for key in titles:
            text = spread(run, key) if key in run["samples"] else ""
            cells.append(f"**{text}**" if key == best else text)
        if ours:
            cells.append(f"{ratio(run, mine, best):.2f}x" if mine and best else "")
        lines.append(cells)
    head = ["work", *titles.values()]
    return table([*head, "over the fastest peer"] if ours else head, lines)


def provenance(runs: Sequence[Run]) -> str:
    """When, where, from what and by which command."""
    first, last = min(run["date"] for run in runs)[:10], max(run["date"] for run in runs)[:10]
    dates = first if first == last else f"{first} to {last}"
    changed = " with local changes"
    commits = sorted({run["commit"][:12] + changed * bool(run.get("dirty")) for run in runs})
    machines = sorted({kind(run["machine"]) for run in runs})
    loads = [run["load"]["before"][0] for run in runs if run.get("load", {}).get("before")]
    commands = sorted({run["command"] for run in runs if "command" in run})
    text = f"{dates}, commit {', '.join(commits)}, {' and '.join(machines)}"
    if loads:
        text += f", load before {min(loads):g} to {max(loads):g}"
    return f"{text}.{''.join(f' `{command}`' for command in commands)}"


def between_marks(text: str, mark: str, table: str, where: str) -> str:
    """``text`` of the page ``where`` with ``table`` between the two lines that mark its place.

    Raises:
        ValueError: The page does not have both marks once.
    """
    start, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"{where}: expected the lines {start} and {end} once each; add them")
    head, rest = text.split(start)
    return f"{head}{start}\n{table}\n{end}{rest.split(end)[1]}"


def section(module: Any, runs: Sequence[Run]) -> str:
    """All that stands between the marks of a row."""
    if not runs:
        return "Not measured."
    return f"{module.tables(runs)}\n\n{provenance(runs)}"
