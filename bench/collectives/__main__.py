"""``python -m bench.collectives``: measures every row and writes one result file."""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.collectives.jobs import LAUNCHERS, PEERS_ALONE, Job, JobError, engine_of, run
from bench.collectives.measure import (
    Record,
    caller_cpu_ms,
    cpu_ms,
    percentile,
    samples,
)
from bench.collectives.rows import IDLE, KEYS, TENSORFLOW, row_of

RESULTS = machine.ROOT / "bench" / "results" / "collectives.json"
#: Every launcher, which takes shared memory, and sockets for comparison.
KINDS = ("aiaccrun", "torchrun", "mpirun", "aiaccrun:tcp")
_ENGINES = ("auto", "shm", "tcp", "mpi")

#: Records of the ranks of each job, by row, kind of job and contender.
Pool = dict[tuple[str, str, str], list[list[Record]]]

_NUMBERS = re.compile(r"\[\s+(-?\d[-\d.,e\s]*?)\s+\]")


def main() -> int:
    """Run the jobs of all kinds in turn, write the file, print a summary."""
    options = _options()
    rows = [key for key in options.rows if key != IDLE and row_of(key).ranks <= options.ranks]
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    before = machine.load()
    checkouts = [machine.ROOT, *([options.against] if options.against else [])]
    jobs: dict[Path, list[dict[str, Any]]] = {checkout: [] for checkout in checkouts}
    pooled: dict[Path, Pool] = {checkout: defaultdict(list) for checkout in checkouts}
    idle: list[dict[str, Any]] = []
    try:
        if rows:
            for repeat in range(options.repeats):
                for kind in options.jobs:
                    for checkout in checkouts[:: -1 if repeat % 2 else 1]:
                        job = replace(_job(options, kind, rows), checkout=checkout)
                        jobs[checkout].append(_measure(job, repeat, pooled[checkout]))
        if IDLE in options.rows:
            for kind in dict.fromkeys((*options.jobs, PEERS_ALONE)):
                idle.append(_idle(options, kind))
    except JobError as error:
        print(error, file=sys.stderr)
        return 1
    results = {
        checkout: [_result(*key, parts) for key, parts in pool.items()]
        for checkout, pool in pooled.items()
    }
    report = {
        "command": ["python", "-m", "bench.collectives", *sys.argv[1:]],
        "began": began,
        **machine.commit(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "ranks": options.ranks,
        "iterations": options.iterations,
        "repeats": options.repeats,
        "variables": options.env,
        "load_average": {"before": before, "after": machine.load()},
        "jobs": jobs[machine.ROOT],
        "idle": idle,
        "submit_cpp": _submit_cpp(options.submit_binary),
        "results": results[machine.ROOT],
    }
    if options.against:
        report["against"] = {
            **machine.commit(options.against),
            "jobs": jobs[options.against],
            "results": results[options.against],
        }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(_dump(report))
    for result in report["results"]:
        print(
            f"{result['row']:13} {result['job']:12} {result['contender']:15}"
            f" median {result['median']:9.3f} p95 {result['p95']:9.3f} {result['unit']}"
            f"  cpu {result['cpu_ms']:9.4f} ms"
        )
    for entry in idle:
        print("idle", entry)
    print(f"wrote {options.json}; python -m bench.report --json {options.json} shows the table")
    return 0


def _job(options: argparse.Namespace, kind: str, rows: list[str]) -> Job:
    return Job(
        kind=kind,
        rows=rows,
        ranks=options.ranks,
        iterations=options.iterations,
        idle_seconds=options.idle_seconds,
        timeout_s=options.timeout,
        variables=options.env,
    )


def _measure(job: Job, repeat: int, pool: Pool) -> dict[str, Any]:
    """Run the job, add its records to ``pool``, and say how it went."""
    load, began = machine.load(), time.monotonic()
    ranks = run(job)
    for key in job.rows:
        for name in ranks[0]["rows"][key]:
            records = [Record(**rank["rows"][key][name]) for rank in ranks]
            pool[key, job.kind, name].append(records)
    return {
        "job": job.kind,
        "repeat": repeat,
        "wall_s": round(time.monotonic() - began, 2),
        "load_average": {"before": load, "after": machine.load()},
        "engine_taken": ranks[0].get("engine", ""),
        "stats": ranks[0].get("stats", {}),
    }


def _idle(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """CPU time of all ranks, and rounds exchanged, over a stretch without work."""
    ranks = run(_job(options, kind, [IDLE]))
    return {
        "job": "gloo" if kind == PEERS_ALONE else kind,
        "seconds": options.idle_seconds,
        "cpu_ms": [rank[IDLE]["cpu_ms"] for rank in ranks],
        "rounds": [rank[IDLE]["rounds"] for rank in ranks],
    }


def _result(key: str, kind: str, name: str, parts: list[list[Record]]) -> dict[str, Any]:
    """Samples of one contender over all jobs, and what they amount to."""
    row = row_of(key)
    by_job = [samples(row, part) for part in parts]
    values = [value for job in by_job for value in job]
    return {
        "row": key,
        "job": kind,
        "contender": name,
        "unit": row.unit,
        "median": round(median(values), 5),
        "p95": round(percentile(values, 0.95), 5),
        "cpu_ms": round(sum(cpu_ms(row, part) for part in parts) / len(parts), 5),
        "caller_cpu_ms": round(sum(caller_cpu_ms(row, part) for part in parts) / len(parts), 5),
        "samples": by_job,
    }


def _submit_cpp(binary: Path | None) -> dict[str, Any] | None:
    """What a C++ benchmark of submit prints: a JSON object with ``median_us``; None without one."""
    if binary is None:
        return None
    ran = subprocess.run([str(binary)], capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def _dump(report: dict[str, Any]) -> str:
    """JSON with each list of numbers on one line."""
    text = json.dumps(report, indent=1)
    return _NUMBERS.sub(lambda match: "[" + " ".join(match[1].split()) + "]", text) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.collectives", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULTS, help="file to write (%(default)s)")
    parser.add_argument(
        "--jobs",
        type=_kinds,
        default=list(KINDS),
        help=f"kinds of jobs, by commas: launcher or launcher:engine ({','.join(KINDS)}); none "
        "measures the peers alone",
    )
    parser.add_argument(
        "--rows",
        type=_rows,
        default=[key for key in KEYS if key not in TENSORFLOW],
        help=f"of {','.join(KEYS)} (all but {', '.join(TENSORFLOW)})",
    )
    parser.add_argument(
        "--iterations", type=_positive, default=10, help="rounds of each job (%(default)s)"
    )
    parser.add_argument(
        "--repeats", type=_positive, default=3, help="jobs of each kind (%(default)s)"
    )
    parser.add_argument("-np", dest="ranks", type=_positive, default=2, help="ranks (%(default)s)")
    parser.add_argument(
        "--idle-seconds", type=float, default=5.0, help="length of the idle row (%(default)s)"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds before a job is killed (%(default)s)"
    )
    parser.add_argument(
        "--env",
        type=_assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set in all ranks, for experiments; recorded in the file",
    )
    parser.add_argument(
        "--against",
        type=_checkout,
        help="a built checkout of another commit, whose jobs alternate with those of this one",
    )
    parser.add_argument("--submit-binary", type=Path, help="C++ benchmark of submit, printing JSON")
    options = parser.parse_args()
    options.env = dict(options.env)
    return options


def _rows(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [key for key in chosen if key not in KEYS]
    if unknown:
        message = f"unknown row: {', '.join(unknown)} (expected some of {', '.join(KEYS)})"
        raise argparse.ArgumentTypeError(message)
    return chosen


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    for kind in kinds:
        known = kind.partition(":")[0] in LAUNCHERS and engine_of(kind) in _ENGINES
        if kind != PEERS_ALONE and not known:
            expected = f"{', '.join(LAUNCHERS)}, one of them with :{'|'.join(_ENGINES)}, or none"
            raise argparse.ArgumentTypeError(f"unknown kind of job: {kind} (expected {expected})")
    return kinds


def _checkout(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / ".venv" / "bin" / "python").exists():
        raise argparse.ArgumentTypeError(f"{path} has no .venv; run make build there")
    return path


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
