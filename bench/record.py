"""Result files: for each cell of a row what was measured, and where, when and from what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench import machine
from bench.row import Row

#: Fewer samples of a contender than this are no measurement.
FEWEST = 5

Run = dict[str, Any]

_NUMBERS = re.compile(r"\[\s+(-?\d[-\d.,e\s]*?)\s+\]")


def refusal(rows: Iterable[Row]) -> str | None:
    """Why nothing of ``rows`` that is measured now can be kept; None if it can."""
    here = machine.commit()
    if here["dirty"]:
        return "files differ from the commit (expected a clean tree; commit first)"
    if not machine.on_main(here["commit"]):
        return f"commit {here['commit'][:12]} is not on main (expected one that stays; merge first)"
    if machine.busy() and (quiet := [row.name for row in rows if "quiet" in row.needs]):
        load = f"a load of {machine.load()[0]:g}"
        return f"{load} (expected 1 or less for {', '.join(quiet)}; end what else computes)"
    return None


def begun(command: Sequence[str]) -> Run:
    """What every run says of itself, when it begins."""
    return {
        "command": " ".join(["python -m bench", *command]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **machine.commit(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "load": {"before": machine.load()},
    }


def finished(begun: Run, cell: str, found: Mapping[str, Any]) -> Run:
    """A whole run of a cell."""
    load = {**begun["load"], "after": machine.load()}
    return {"cell": cell, **begun, "load": load, **found}


def read(path: Path) -> list[Run]:
    """The runs of a file, in the order of the row's cells; none without the file."""
    if not path.exists():
        return []
    runs: list[Run] = json.loads(path.read_text())["runs"]
    return runs


def write(path: Path, run: Run, cells: Sequence[str]) -> None:
    """Put a run into a file, in place of an earlier one of its cell; only ``cells`` stay."""
    runs = {old["cell"]: old for old in read(path)} | {run["cell"]: run}
    ordered = [runs[cell] for cell in cells if cell in runs]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"runs": ordered}, indent=1)
    # Each list of numbers on one line.
    path.write_text(_NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")


def part(run: Run, title: str, keys: Mapping[str, str]) -> Run:
    """A run of one work of a cell: the samples of contenders, by their keys in that cell."""
    kept = {name: run["samples"][key] for name, key in keys.items() if key in run["samples"]}
    return {**run, "title": f"{run['title']}, {title}", "samples": kept}


def samples(run: Run, contender: str) -> list[float]:
    """All samples of a contender, whatever job they come from."""
    return [value for job in run["samples"].get(contender, ()) for value in job]


def problems(row: Row, runs: Sequence[Run]) -> Iterator[str]:
    """What a rival would not sign in a row's runs, but for their age."""
    missing = {"command", "date", "commit", "machine", "load", "samples"}
    for run in runs:
        where = f"{row.name}:{run['cell']}"
        if lost := sorted(missing - run.keys()):
            yield f"{where}: has no {', '.join(lost)}; measure it again"
            continue
        if run.get("dirty"):
            yield f"{where}: was measured with local changes; measure it again"
        elif not machine.on_main(run["commit"]):
            yield f"{where}: its commit {run['commit'][:12]} is not on main; measure it again"
        if not row.simulated:
            counts = {name: len(samples(run, name)) for name in run["samples"]}
            for name, count in counts.items():
                if count < FEWEST:
                    yield f"{where}: {count} samples of {name} (expected at least {FEWEST})"
            if not counts:
                yield f"{where}: has no samples; measure it"
    kinds = {machine.kind(run["machine"]) for run in runs if "machine" in run}
    if len(kinds) > 1:
        yield f"{row.name}: measured on {' and '.join(sorted(kinds))} (expected one kind)"


def stale(row: Row, runs: Sequence[Run]) -> Iterator[str]:
    """Cells whose sources have changed since they were measured."""
    for run in runs:
        changed = machine.changed(run.get("commit", "unknown"), row.sources)
        if changed:
            yield f"{row.name}:{run['cell']}: {changed} commits have changed its sources since"
