"""Tells by what is kept whether aiacc has become slower; `make nightly` asks it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from bench import machine, record
from bench.row import ROWS, Row
from bench.tables import fastest, ratio

#: Ratios to the fastest peer may grow by that much.
ALLOWED = 1.15


def slower(
    before: record.Run, now: record.Run, ours: Sequence[str], peers: Sequence[str]
) -> str | None:
    """How much slower the fastest of ours has become beside the fastest peer, if too much. Pure."""
    ratios = []
    for run in (before, now):
        mine, theirs = fastest(run, ours), fastest(run, peers)
        if mine is None or theirs is None:
            return f"has nobody of {', '.join(peers if mine else ours)}"
        ratios.append(ratio(run, mine, theirs))
    if ratios[1] <= ALLOWED * ratios[0]:
        return None
    return f"{ratios[1]:.3f}x of the fastest peer (kept: {ratios[0]:.3f}x)"


def watch(measure: Callable[[Row, str], record.Run]) -> int:
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
                text = slower(before, measure(row, cell), module.OURS, module.PEERS)
                if text is None:
                    break
            found += text is not None
            print(f"{name}: {text or 'as it was'}", flush=True)
    if found:
        print(f"[bench] {found} cells are slower by more than 15 %", file=sys.stderr)
    return 1 if found else 0
