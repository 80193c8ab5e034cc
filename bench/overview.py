"""Parts of pages that are made of the results of several rows. Pure, but for reading them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench import record
from bench.collectives.peers import absent
from bench.machine import ROOT
from bench.record import Run, samples
from bench.row import ROWS, row_of
from bench.tables import amount, between_marks, fastest, ratio, table

#: Rows whose watched cells are in the short table; of the sizes of a cell it has two.
_HIGHLIGHTS = ("network.training", "collectives", "blocking", "step")
_SIZES = (", 4 B", ", 4 MiB")

#: Module and runs of each row that names ours and peers.
Rows = Mapping[str, tuple[Any, Sequence[Run]]]


def rows() -> Rows:
    """Those that compare aiacc with others, and have results."""
    found = {row.name: (row.load(), record.read(row.result)) for row in ROWS}
    return {
        name: (module, runs)
        for name, (module, runs) in found.items()
        if runs and hasattr(module, "OURS") and hasattr(module, "PEERS")
    }


def contests(module: Any, runs: Sequence[Run]) -> Iterator[Run]:
    """Runs of one work each, in which both ours and peers were measured."""
    for run in runs:
        for part in module.contests(run) if hasattr(module, "contests") else [run]:
            if fastest(part, module.OURS) and fastest(part, module.PEERS):
                yield part


def loses(results: Rows) -> str:
    """Where a peer is faster than the fastest of our ways: every work of every row."""
    found, count = [], 0
    for name, (module, runs) in results.items():
        for run in contests(module, runs):
            words, over = sides(module, run)
            count += 1
            if over > 1:
                found.append((over, [name, run["title"], *words, f"{over:.2f}x"]))
    head = ["row", "work", "aiacc", "the fastest peer", "aiacc / peer"]
    lines = [line for _, line in sorted(found, key=lambda one: one[0], reverse=True)]
    others = [row.name for row in ROWS if row.name not in results]
    text = f"{len(lines)} of {count} works of {len(results)} rows: {', '.join(results)}."
    text += f" Not counted: {', '.join(others)}."
    return f"{text}\n\n{table(head, lines)}" if lines else text


def highlights(results: Rows) -> str:
    """A few works for a reader in a hurry."""
    lines = []
    shown: list[Run] = []
    for name in _HIGHLIGHTS:
        module, runs = results.get(name, (None, ()))
        chosen = [run for run in runs if run["cell"] in row_of(name).watched]
        shown += chosen
        for run in contests(module, chosen):
            if name != "blocking" or run["title"].endswith(_SIZES):
                words, over = sides(module, run)
                when = f"{run['date'][:10]}, {run['commit'][:12]}"
                lines.append([run["title"], *words, f"{over:.2f}x", when])
    head = ["work; how ranks talk", "aiacc", "the fastest peer", "aiacc / peer", "date, commit"]
    return table(head, lines) + absent(shown)


def sides(module: Any, run: Run) -> tuple[list[str], float]:
    """The fastest of both sides in words, and the ratio of their medians."""
    keys = [fastest(run, module.OURS) or "", fastest(run, module.PEERS) or ""]
    values = [amount(median(samples(run, key)), run["unit"]) for key in keys]
    words = [f"{module.TITLES[key]}: {value}" for key, value in zip(keys, values, strict=True)]
    return words, ratio(run, *keys)


def pages() -> Iterator[tuple[str, str, str]]:
    """Page, mark and text of each part."""
    results = rows()
    yield "README.md", "bench:highlights", highlights(results)
    yield "docs/benchmarks.md", "bench:loses", loses(results)


def publish() -> None:
    """Put the parts into their pages."""
    for name, mark, text in pages():
        page = ROOT / name
        page.write_text(between_marks(page.read_text(), mark, text, name))


def problems() -> Iterator[str]:
    """Parts that say something else than the results."""
    for name, mark, text in pages():
        page = (ROOT / name).read_text()
        if between_marks(page, mark, text, name) != page:
            yield f"{name}: its part {mark} is not that of the results; python -m bench --write"
