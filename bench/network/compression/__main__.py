"""``python -m bench.network.compression``: ways for gradients to travel between capped hosts.

Four virtual hosts with two ranks each. In each cell all gradients of a model are there at once, so
a step is their communication: with float32, 16 bits, block-quantised, as MSTopK's largest 1 %, and
with PowerSGD of torch's DistributedDataParallel over gloo, for which there is one rank on each
host, as for some of ours beside it. Beside stands what the model of
`aiacc.compression.costs` predicts from the rate, and from how fast this machine codes, which is
measured first. Results are written after each cell. Needs root, see bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiacc import _core
from aiacc.compression.codecs import parse
from aiacc.compression.costs import Speeds, speeds_from
from aiacc.compression.wire import wire_of
from bench import machine
from bench.network import launch, runs
from bench.network.bed import Bed, BedError, bed_for
from bench.network.compression.cells import (
    AUTO,
    CONTENDERS,
    Cell,
    Contender,
    chosen,
)
from bench.network.compression.report import RESULT, report

_LIMIT_S = 3600.0
#: Elements with which coding is timed.
_ELEMENTS = 16 << 20


def main() -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args()
    try:
        if options.report or options.write:
            report(options.json, write=options.write)
            return 0
        kept = {run["cell"]["name"]: run for run in runs.kept(options.json, add=True)}
        for cell in chosen(options.cells):
            old = kept.get(cell.name)
            if old is None or options.again or options.add:
                new = _measure(cell, options.only.split(","))
                runs.record(options.json, merged(old, new) if old and options.add else new)
    except (BedError, ValueError, RuntimeError) as error:
        print(f"[bench.network] {error}", file=sys.stderr)
        return 2
    return 0


def _measure(cell: Cell, only: list[str]) -> dict[str, Any]:
    asked = [one.name for one in CONTENDERS if only == [""] or one.name in only]
    load = machine.load()
    speeds = {
        one.name: _speeds(one.codec) for one in CONTENDERS if _is_coded(one) and one.name in asked
    }
    jobs = []
    with bed_for(cell.spec) as bed, tempfile.TemporaryDirectory() as folder:
        for number in range(cell.rounds):
            order = [one for one in cell.contenders(number) if one.name in asked]
            found: dict[str, Any] = {}
            for per_host in dict.fromkeys(one.per_host for one in order):
                together = [one for one in order if one.per_host == per_host]
                found.update(_job(bed, Path(folder), cell, together, per_host))
            jobs.append(found)
    return {
        "cell": {**asdict(cell), "name": cell.name},
        "bed": asdict(cell.spec),
        "speeds": {name: asdict(speed) for name, speed in speeds.items()},
        "jobs": jobs,
        "load": {"before": load, "after": machine.load()},
        **runs.begun(),
    }


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``old`` with what ``new`` has measured in the place of its own. Pure."""
    names = {name for job in new["jobs"] for name in job}
    left = [{name: one for name, one in job.items() if name not in names} for job in old["jobs"]]
    added = {name: new[name] for name in ("when", "machine", "versions", "commit", "dirty", "load")}
    return {
        **old,
        "speeds": {**old["speeds"], **new["speeds"]},
        "jobs": [*(job for job in left if job), *new["jobs"]],
        "added": [*old.get("added", []), {"contenders": sorted(names), **added}],
    }


def _is_coded(one: Contender) -> bool:
    return one.name != AUTO and one.codec not in ("", "none", "bf16", "powersgd")


def _speeds(codec: str) -> Speeds:
    """Of one rank by itself."""
    one = parse(codec)
    return speeds_from(one, _ELEMENTS, _core.coding_seconds(wire_of(one), _ELEMENTS))


def _job(
    bed: Bed, folder: Path, cell: Cell, order: list[Contender], per_host: int
) -> Mapping[str, Any]:
    output = folder / "result.json"
    output.unlink(missing_ok=True)
    job = {
        "shapes": [shape for _, shape in cell.shapes],
        "steps": cell.steps,
        "contenders": [asdict(one) for one in order],
        "output": str(output),
    }
    (folder / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "bench.network.compression.step", str(folder / "job.json")]
    bed.reset()
    code = launch.run(bed, "explicit", per_host, command, timeout_s=_LIMIT_S)
    if code != 0:
        raise RuntimeError(f"{cell.name}: the job ended with code {code}")
    found: dict[str, Any] = json.loads(output.read_text())
    for name, each in found.items():
        print(f"{cell.name} {name}: {statistics.median(each['seconds']):.3f} s", flush=True)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.network.compression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cells", default="all", metavar="A,B", help="all, or MODEL:MBIT")
    parser.add_argument("--only", default="", metavar="A,B", help="some contenders")
    parser.add_argument("--json", type=Path, default=RESULT, help="result file (%(default)s)")
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--add", action="store_true", help="the --only of what the file has again")
    parser.add_argument("--report", action="store_true", help="print the table, measure nothing")
    parser.add_argument(
        "--write", action="store_true", help="the table of docs/compression.md and the plot"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
