"""Jobs on virtual hosts in which something breaks: right numbers, or a clear error.

python -m bench.network.faults --runs 200       # writes bench/results/network_faults.json
python -m bench.network.faults --seed 17 --runs 1     # run 17 of them again
"""

import argparse
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import machine
from bench.network import runs
from bench.network.bed import BedError
from bench.network.faults import run as fault_run
from bench.network.faults.plan import KINDS, STEPS, CheckResult, Fault, choose, judge
from bench.network.faults.work import tensors

RESULTS = machine.ROOT / "bench" / "results" / "network_faults.json"
#: A run in which this machine stood still says nothing about the fault; it is tried again.
_ATTEMPTS = 5


def one(fault: Fault, name: str) -> tuple[dict[str, Any], Path | None]:
    """Run it and judge it: the row of the result file, and the ranks' folder if it went wrong."""
    for _ in range(_ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix="aiacc-faults-"))
        outcome = fault_run.run(fault, name, folder)
        expected = tensors(fault.seed, STEPS, fault.size)
        result = judge(fault, outcome.reports, expected, outcome.struck, outcome.left)
        if not outcome.disturbed:
            break
        print(f"seed {fault.seed}: stood still for {outcome.absent_s:.1f} s; again", flush=True)
        shutil.rmtree(folder)
    if result.outcome != "wrong":
        shutil.rmtree(folder)
    return _row(fault, outcome, result), folder if result.outcome == "wrong" else None


def _row(fault: Fault, outcome: fault_run.Outcome, result: CheckResult) -> dict[str, Any]:
    reports = outcome.reports.values()
    return {
        **asdict(fault),
        "struck": outcome.struck,
        "outcome": result.outcome,
        "problems": result.problems,
        "checked": sum(report.checked for report in reports),
        "seconds": round(outcome.seconds, 2),
        "absent_s": round(outcome.absent_s, 2),
        "packets": outcome.packets,
        "ranks": [
            {
                "outcome": report.outcome,
                "checked": report.checked,
                "type": report.type,
                "text": report.text,
                "late_s": report.late_s,
                "code": report.code,
                "short_calls": report.short_calls,
            }
            for report in reports
        ],
    }


def main() -> int:
    """Run them, write the file; 1 if some run went wrong."""
    options = _options()
    only = options.only.split(",") if options.only else []
    found: dict[str, Any] = {
        **runs.begun(),
        "command": runs.command("bench.network.faults", sys.argv[1:]),
        "rows": [],
    }
    before = runs.kept(options.json, options.add)
    wrong = 0
    try:
        for seed in range(options.seed, options.seed + options.runs):
            fault = choose(seed, only)
            row, folder = one(fault, options.name)
            found["rows"].append(row)
            wrong += row["outcome"] == "wrong"
            _print(fault, row)
            if folder is not None:
                again = f" --only {options.only}" if options.only else ""
                print(f"    again: python -m bench.network.faults --seed {seed} --runs 1{again}")
                print(f"    output of the ranks: {folder}", flush=True)
            runs.save(options.json, [*before, found])
    except BedError as error:
        print(f"[bench.network] {error}", file=sys.stderr)
        return 2
    print(f"{options.runs} runs, {wrong} of them wrong")
    return 1 if wrong else 0


def _print(fault: Fault, row: dict[str, Any]) -> None:
    where = "start" if fault.step < 0 else f"step {fault.step}"
    missed = "" if row["struck"] or fault.kind in ("none", "short_io") else ", came too late"
    errors = sorted({rank["type"] for rank in row["ranks"] if rank["type"]})
    print(
        f"seed {fault.seed} {fault.kind}{missed}: {row['outcome']}"
        f"{' (' + ', '.join(errors) + ')' if errors else ''}, {row['checked']} tensors, "
        f"{row['seconds']:.1f} s; {fault.engine}, ranks {fault.ranks_of}, {fault.lanes} lanes, "
        f"{where}{', short calls' if fault.short_io else ''}",
        flush=True,
    )
    for problem in row["problems"]:
        print(f"    {problem}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.network.faults",
        description=__doc__,
        epilog="kinds: " + "; ".join(f"{kind}: {what}" for kind, what in KINDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first run")
    parser.add_argument("--only", default="", metavar="A,B", help="kinds")
    parser.add_argument("--name", default="faults", help="of the bed (%(default)s)")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file to write (%(default)s)")
    parser.add_argument("--add", action="store_true", help="keep the runs that the file has")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
