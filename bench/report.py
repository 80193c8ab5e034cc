"""``python -m bench.report``: tables of the documents, from result files.

Those of `bench.row` are written by ``python -m bench``.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.bed.plan import Spec
from bench.collectives.jobs import engine_of
from bench.collectives.rows import BARS, CONTENDERS, ROWS, Bar, Row, bar_of, row_of
from bench.machine import ROOT
from bench.network.training import PEERS, TITLES
from bench.record import Run, samples
from bench.record import read as read_runs
from bench.row import row_of as frame_row
from bench.tables import fastest

FOLDER = ROOT / "bench" / "results"
RESULTS = FOLDER / "collectives.json"
_BENCHMARKS = ROOT / "docs" / "benchmarks.md"
_MARK = "bench:collectives"
#: Rows of the short table, and how their jobs talk, and gloo beside them.
_HIGHLIGHTS = ("resnet50", "small", "latency_4B", "step")
_WAYS = {
    "aiaccrun": "one machine: aiacc by shared memory, gloo by TCP",
    "aiaccrun:tcp": "one machine: both by TCP",
}
#: Result files whose summaries docs/benchmarks.md has below that of RESULTS.
_OTHERS = (
    "repeated",
    "before_after",
    "ranks_4",
    "ranks_8",
    "ranks_8_4M",
    "process_set",
    "tensorflow",
)
_UNITS = {"ms": "ms", "us": "µs"}

Results = dict[tuple[str, str, str], dict[str, Any]]


def summary(report: dict[str, Any]) -> str:
    """Markdown: each row against its peers, and whether its bar is reached."""
    results = _by_key(report)
    lines = [
        "| work | job | aiacc (p95) | peer (p95) | aiacc / peer (per job) | to reach | reached |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in ROWS:
        for kind in dict.fromkeys(kind for _, kind, _ in results):
            ours = results.get((row.key, kind, "aiacc"))
            if ours is not None:
                lines.append(_line(row, kind, report["ranks"], results))
    if report.get("submit_cpp"):
        bar = next(bar for bar in BARS if bar.row == "submit_cpp")
        value = float(report["submit_cpp"]["median_us"])
        reached = _yes(value <= bar.limit)
        limit = f"<= {bar.limit:g} µs"
        lines.append(f"| submit in C++, per tensor | | {value:.2f} µs | | | {limit} | {reached} |")
    if "against" in report:
        lines += ["", *_against(report)]
    return "\n".join([*lines, "", *_idle(report), *_floor(report, results), _provenance(report)])


def highlights(report: dict[str, Any], training: list[Run]) -> str:
    """Markdown: a few rows for a reader in a hurry, and a step between virtual hosts."""
    results = _by_key(report)
    lines = ["| work | where | aiacc | peer | aiacc / peer |", "| --- | --- | --- | --- | --- |"]
    run = next(run for run in training if run["cell"] == "resnet50:300")
    ddp = dict.fromkeys(("ddp1:25", fastest(run, PEERS) or "ddp1:25"))
    times = {name: median(samples(run, name)) for name in ("lanes8", *ddp)}
    ours = times["lanes8"]
    theirs = "; ".join(f"{TITLES[name]}: {times[name]:.2f} s" for name in ddp)
    lines.append(
        f"| training step, ResNet-50, backward pass modelled "
        f"| {run['bed']['hosts']} virtual hosts, flow / interface {Spec(**run['bed']).caps} "
        f"| 8 lanes: {ours:.2f} s | {theirs} "
        f"| {'; '.join(f'{ours / times[one]:.2f}x' for one in ddp)} |"
    )
    for key, (kind, way) in itertools.product(_HIGHLIGHTS, _WAYS.items()):
        row, ours = row_of(key), results[key, kind, "aiacc"]["median"]
        peers = _peers(row, kind, report["ranks"], results)
        medians = {name: found["median"] for name, found in peers.items()}
        lines.append(
            f"| {row.title} | {way} | {_time(ours, row.unit)} "
            f"| {'; '.join(f'{name}: {_time(one, row.unit)}' for name, one in medians.items())} "
            f"| {'; '.join(f'{ours / one:.2f}x' for one in medians.values())} |"
        )
    return "\n".join(lines)


def everything(report: dict[str, Any]) -> str:
    """Markdown: all contenders of all rows, with CPU time."""
    results = _by_key(report)
    lines = [
        "| work | job | contender | median | p95 | CPU, all ranks | aiacc / contender |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (key, kind, name), found in results.items():
        row = row_of(key)
        ours = results.get((key, kind, "aiacc"))
        ratio = (
            "" if ours is None or name == "aiacc" else f"{ours['median'] / found['median']:.2f}x"
        )
        unit = row.unit
        cpu = found["cpu_ms"] * (1 if unit == "ms" else 1000)
        lines.append(
            f"| {row.title} | {kind} | {CONTENDERS[name]} | {_time(found['median'], unit)} "
            f"| {_time(found['p95'], unit)} | {_time(cpu, unit)} | {ratio} |"
        )
    return "\n".join([*lines, "", _provenance(report)])


def main() -> int:
    """Print the tables, or put them between the markers of the documents."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULTS, help="result file (%(default)s)")
    parser.add_argument("--all", action="store_true", help="print all contenders, not the summary")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--write", action="store_true", help="update the documents")
    group.add_argument("--check", action="store_true", help="fail if they are out of date")
    options = parser.parse_args()
    report = read(options.json)
    if not options.write and not options.check:
        print(everything(report) if options.all else summary(report))
        return 0
    stale = []
    for path, tables in documents(report).items():
        old = new = path.read_text()
        for mark, table in tables.items():
            new = between_markers(new, table, str(path), mark)
        if new != old:
            stale.append(path)
            if options.write:
                path.write_text(new)
    if options.check and stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        print(f"out of date: {names}; run python -m bench.report --write", file=sys.stderr)
        return 1
    return 0


def read(path: Path) -> dict[str, Any]:
    """A result file, whose command names it and no other path of who has measured."""
    report: dict[str, Any] = json.loads(path.read_text())
    own = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    values = {"--against": "CHECKOUT", "--json": str(own)}
    words = report["command"]
    report["command"] = [
        values.get(before, word) for before, word in zip(["", *words], words, strict=False)
    ]
    return report


def documents(report: dict[str, Any]) -> dict[Path, dict[str, str]]:
    """The documents and, by their marks, the tables in them."""
    others = {
        f"bench:{name.replace('_', '-').lower()}": summary(read(FOLDER / f"{name}.json"))
        for name in _OTHERS
    }
    training = read_runs(frame_row("network.training").result)
    return {
        ROOT / "README.md": {"bench:highlights": highlights(report, training)},
        _BENCHMARKS: {_MARK: summary(report), **others},
    }


def between_markers(text: str, table: str, where: str, mark: str = _MARK) -> str:
    """``text`` with ``table`` between the two lines that mark its place.

    Raises:
        ValueError: If ``text``, which came from ``where``, does not have both markers once.
    """
    start, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"{where}: expected the lines {start} and {end} once each; add them")
    head, rest = text.split(start)
    _, tail = rest.split(end)
    return f"{head}{start}\n{table}\n{end}{tail}"


def publish(
    text: str, page: Path, mark: str, path: Path, plot: Callable[[], Any] | None, *, write: bool
) -> None:
    """Print tables, or put them between the marks of a page and save the plot.

    Args:
        text: Markdown.
        page: Where it belongs.
        mark: That of its place.
        path: The result file; a figure goes beside it.
        plot: Draws the figure; None: there is none.
        write: Whether to write anything.
    """
    if not write:
        print(text)
        return
    page.write_text(between_markers(page.read_text(), text, str(page), mark))
    if plot is not None:
        figure = plot()
        figure.tight_layout()
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _line(row: Row, kind: str, ranks: int, results: Results) -> str:
    """One line of the summary."""
    ours, peers = results[row.key, kind, "aiacc"], _peers(row, kind, ranks, results)
    ratio = ours["median"] / min(found["median"] for found in peers.values())
    bar = bar_of(row.key, engine_of(kind), ranks)
    limit, reached = _judge(bar, row, ratio, ours["median"])
    return (
        f"| {row.title} | {kind} | {_with_p95(ours, row)} "
        f"| {'; '.join(f'{name}: {_with_p95(found, row)}' for name, found in peers.items())} "
        f"| {'; '.join(_ratio(ours, found) for found in peers.values())} | {limit} | {reached} |"
    )


def _against(report: dict[str, Any]) -> list[str]:
    """Every contender of aiacc here and in the other checkout, whose jobs alternated."""
    other = report["against"]
    before = _by_key(other)
    lines = [
        f"| work | job | contender | {other['commit'][:9]} | here | ratio (per job) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for key, found in _by_key(report).items():
        row, name = row_of(key[0]), key[2]
        if name.startswith("aiacc") and key in before:
            old = before[key]
            lines.append(
                f"| {row.title} | {key[1]} | {CONTENDERS[name]} | {_with_p95(old, row)} "
                f"| {_with_p95(found, row)} | {_ratio(found, old)} |"
            )
    return lines


def _ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """That of the medians, and the lowest and highest of a single job."""
    jobs = [
        median(mine) / median(other)
        for mine, other in zip(ours["samples"], theirs["samples"], strict=True)
    ]
    spread = f" ({min(jobs):.2f}-{max(jobs):.2f})" if len(jobs) > 1 else ""
    return f"{ours['median'] / theirs['median']:.2f}x{spread}"


def _peers(row: Row, kind: str, ranks: int, results: Results) -> dict[str, dict[str, Any]]:
    """By their titles: the peer that the bar names, and torch's fastest call if that is faster."""
    bar = bar_of(row.key, engine_of(kind), ranks)
    named = bar.peer if bar and bar.peer else "gloo"
    of_torch = [
        name
        for key, job, name in results
        if (key, job) == (row.key, kind) and name.startswith(("gloo", "ddp"))
    ]
    fastest = min([named, *of_torch], key=lambda name: results[row.key, kind, name]["median"])
    return {CONTENDERS[name]: results[row.key, kind, name] for name in (named, fastest)}


def _judge(bar: Bar | None, row: Row, ratio: float, value: float) -> tuple[str, str]:
    """The bar in words, and whether it is reached."""
    if bar is None:
        return "", ""
    if bar.peer:
        return f"<= {bar.limit:g}x", _yes(ratio <= bar.limit)
    return f"<= {bar.limit:g} {_UNITS[row.unit]}", _yes(value <= bar.limit)


def _idle(report: dict[str, Any]) -> list[str]:
    """A sentence for each idle measurement."""
    lines = []
    for entry in report["idle"]:
        cpu = ", ".join(f"{value:.2f}" for value in entry["cpu_ms"])
        text = f"Idle for {entry['seconds']:g} s, `{entry['job']}` used {cpu} ms of CPU per rank"
        if entry["job"] != "gloo":
            text += f" and exchanged {max(entry['rounds']):g} rounds"
        lines.append(f"{text}.")
    return [" ".join(lines), ""] if lines else []


def _floor(report: dict[str, Any], results: Results) -> list[str]:
    """What a step over TCP cannot be faster than when all cores are busy, if it was measured."""
    kind = "aiaccrun:tcp"
    alone = results.get(("step", kind, "none"))
    carried = results.get(("resnet50", kind, "sockets"))
    if alone is None or carried is None:
        return []
    ours, ddp = results["step", kind, "aiacc"], results["step", kind, "ddp"]
    cores = report["machine"]["cores"]
    floor = (alone["cpu_ms"] + carried["cpu_ms"]) / cores
    return [
        f"What bounds the step over `tcp` here: without communication it uses "
        f"{alone['cpu_ms']:.0f} ms of CPU on all ranks together, and plain sockets that carry the "
        f"bytes of a ring, and reduce nothing, {carried['cpu_ms']:.0f} ms. On {cores} cores that "
        f"is {floor:.1f} ms, {floor / ddp['median']:.2f}x DDP/gloo, before a single number is "
        f"added; aiacc's whole step uses {ours['cpu_ms']:.0f} ms of CPU.",
        "",
    ]


def _provenance(report: dict[str, Any]) -> str:
    """Where, when and from what."""
    machine, versions = report["machine"], report["versions"]
    load = report["load_average"]
    commit = report["commit"][:12] + (" with local changes" if report["dirty"] else "")
    return (
        f"Measured {report['began']} at commit {commit}: {report['ranks']} ranks on "
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"torch {versions['torch']}, mpich {versions['mpich']}; load average "
        f"{load['before'][0]} before, {load['after'][0]} after; medians over {report['repeats']} "
        f"jobs of each kind. Samples: `bench/results`; command: `{' '.join(report['command'])}`."
    )


def _by_key(report: dict[str, Any]) -> Results:
    return {(item["row"], item["job"], item["contender"]): item for item in report["results"]}


def _with_p95(found: dict[str, Any], row: Row) -> str:
    return f"{_time(found['median'], row.unit)} ({_time(found['p95'], row.unit)})"


def _time(value: float, unit: str) -> str:
    """Three significant digits and the unit; microseconds below 0.1 ms."""
    if unit == "ms" and value < 0.1:
        value, unit = value * 1000, "us"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {_UNITS[unit]}"


def _yes(reached: bool) -> str:
    return "yes" if reached else "**no**"


if __name__ == "__main__":
    sys.exit(main())
