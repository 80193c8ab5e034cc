"""Row network.faults: jobs in which something breaks end with right numbers, or a clear error.

Each run follows from its kind and seed. AIACC_BENCH_SEED is the seed of the first run; so this is
run 17 of a kind again:

    AIACC_BENCH_SEED=17 python -m bench network.faults:kill --rounds 1
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import tables as markdown
from bench.network.faults import run as fault_run
from bench.network.faults.plan import KINDS, STEPS, CheckResult, Fault, choose, judge
from bench.network.faults.work import tensors
from bench.record import Run

CELLS = tuple(KINDS)
_ROUNDS = 40
#: A run in which this machine stood still says nothing about the fault; it is tried again.
_ATTEMPTS = 5


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """So many runs of a kind; the samples are how long they took."""
    first = int(os.environ.get("AIACC_BENCH_SEED", "0"))
    rows, wrong = [], []
    for seed in range(first, first + (rounds or _ROUNDS)):
        fault = choose(cell, seed)
        outcome, result, folder = one(fault, "faults")
        rows.append(_row(fault, outcome, result))
        print(f"{cell}: {rows[-1]}", file=sys.stderr, flush=True)
        if folder is not None:
            again = f"AIACC_BENCH_SEED={seed} python -m bench network.faults:{cell} --rounds 1"
            problems = "; ".join(result.problems)
            wrong.append(f"seed {seed}: {problems}; output of the ranks: {folder}; again: {again}")
    samples = {"run": [[row["seconds"] for row in rows]]}
    return {"title": KINDS[cell], "unit": "s", "samples": samples, "rows": rows, "wrong": wrong}


def one(fault: Fault, name: str) -> tuple[fault_run.Outcome, CheckResult, Path | None]:
    """Run it on a bed of that name and judge it; the ranks' folder stays if it went wrong."""
    for _ in range(_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix="aiacc-faults-"))
        outcome = fault_run.run(fault, name, folder)
        expected = tensors(fault.seed, STEPS, fault.size)
        result = judge(fault, outcome.reports, expected, outcome.struck, outcome.left)
        if not outcome.disturbed:
            break
        print(f"seed {fault.seed}: stood still for {outcome.absent_s:.1f} s; again", flush=True)
        shutil.rmtree(folder)
    if result.outcome == "wrong":
        return outcome, result, folder
    shutil.rmtree(folder)
    return outcome, result, None


def _row(fault: Fault, outcome: fault_run.Outcome, result: CheckResult) -> dict[str, Any]:
    """What is kept of a run; its settings follow from the seed."""
    reports = outcome.reports.values()
    frozen = fault.victim if fault.kind == "freeze_long" else None
    return {
        "seed": fault.seed,
        "outcome": result.outcome,
        "problems": result.problems,
        "struck": outcome.struck,
        "starting": fault.step < 0,
        "checked": sum(report.checked for report in reports),
        "short_calls": sum(report.short_calls for report in reports),
        "seconds": round(outcome.seconds, 2),
        "absent_s": round(outcome.absent_s, 2),
        "errors": sorted({report.type for report in reports if report.type}),
        # From the fault to the exception, of ranks at work that were not frozen themselves.
        "late_s": [
            report.late_s
            for rank, report in outcome.reports.items()
            if fault.step >= 0 and report.outcome == "error" and rank != frozen
        ],
    }


def tables(runs: Sequence[Run]) -> str:
    """A line for each kind of fault, and what has come of it; then how much was checked."""
    lines = [_line(run["title"], run["rows"]) for run in runs]
    rows = [row for run in runs for row in run["rows"]]
    head = ["fault", "runs", "right numbers on all ranks", "clear error on every survivor", "wrong"]
    head.append("seconds to the error, median (most)")
    short = [row["short_calls"] for row in rows if row["short_calls"]]
    return (
        f"{markdown.table(head, [*lines, [*_line('all', rows)[:-1], '']])}\n\n"
        f"{len(rows)} runs, {sum(row['checked'] for row in rows):,} tensors checked element by "
        f"element; {len(short)} of the runs had short socket calls ({sum(short):,}), whatever else "
        f"happened; in {sum(row['starting'] for row in rows)} the fault came while the ranks "
        "started."
    )


def _line(title: str, rows: Sequence[Run]) -> list[str]:
    outcomes = [row["outcome"] for row in rows]
    counts = [str(outcomes.count(one)) for one in ("survived", "clear error", "wrong")]
    late = [seconds for row in rows for seconds in row["late_s"]]
    text = f"{median(late):.2f} ({max(late):.2f})" if late else ""
    return [title, str(len(rows)), *counts, text]
