"""Tells by what is kept whether aiacc has become slower; `make nightly` asks it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from bench import machine, record
from bench.overview import contests, sides
from bench.record import Run
from bench.row import ROWS, Row

#: Ratios to the fastest peer may grow by that much.
ALLOWED = 1.15


def slower(before: Iterable[Run], now: Iterable[Run], module: Any) -> str | None:
    """What has become too slow: the fastest of ours beside the fastest peer, by work. Pure.

    Args:
        before: Works of a cell as they are kept, see `bench.overview.contests`.
        now: The same, measured now.
        module: Says OURS and PEERS.
    """
    kept, found = {run["title"]: sides(module, run)[1] for run in before}, []
    for run in now:
        over, limit = sides(module, run)[1], kept.get(run["title"])
        if limit is not None and over > ALLOWED * limit:
            text = f"{over:.3f}x of the fastest peer (kept: {limit:.3f}x)"
            found.append(f"{run['title']}: {text}")
    return "; ".join(found) or None


def watch(measure: Callable[[Row, str], Run]) -> int:
    """Measure the watched cells of all rows; 1 if one of them is slower, also a second time.

    Cells that were kept on another kind of machine are named and not compared.
    """
    here, found = machine.kind(machine.describe()), 0
    for row in ROWS:
        kept = {run["cell"]: run for run in record.read(row.result)}
        for cell in row.watched:
            name, before = f"{row.name}:{cell}", kept.get(cell)
            if before is None or machine.kind(before["machine"]) != here:
                print(f"{name}: not compared, for it was not kept on {here}")
                continue
            module = row.load()
            text: str | None = "not measured"
            for _ in range(2):
                now = measure(row, cell)
                text = slower(contests(module, [before]), contests(module, [now]), module)
                if text is None:
                    break
            found += text is not None
            print(f"{name}: {text or 'as it was'}", flush=True)
    if found:
        print(f"[bench] {found} cells are slower by more than 15 %", file=sys.stderr)
    return 1 if found else 0
