"""Runs the jobs of a cell: the probe, then rounds in which all contenders take turns."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aiacc.kfac.methods import Found
from bench import machine
from bench.network import launch, runs
from bench.network.bed import Bed, bed_for
from bench.network.second_order import cells
from bench.network.second_order.cells import Cell

_LIMIT_S = 1200.0
_VARIABLES = {"AIACC_ENGINE": "tcp", "AIACC_LANES": "4"}


def measure(cell: Cell) -> dict[str, Any]:
    """Everything that a result file has of a cell. Blocks. Main thread only.

    Raises:
        RuntimeError: A job failed.
    """
    load = machine.load()
    with bed_for(cell.spec) as bed, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.json"
        _run(
            bed,
            [
                "-m",
                "aiacc.run.plan",
                "probe",
                "--output",
                str(path),
                "--max-mib",
                "16",
                "--lanes",
                "2",
            ],
        )
        network = json.loads(path.read_text())
        fused, single = (cells.sustained(network["points"], lanes) for lanes in (1, 2))
        found = cells.found(cell, fused, single)
        jobs = [
            _round(bed, Path(folder), cell, found if number % 2 == 0 else found[::-1])
            for number in range(cell.rounds)
        ]
    for one in found:
        seconds = [s for job in jobs for s in job[one.title]["seconds"]]
        print(
            f"{cell.name} {one.title}: {statistics.median(seconds):.3f} s per step, "
            f"{one.step.seconds:.3f} predicted",
            flush=True,
        )
    return {
        "cell": {**asdict(cell), "name": cell.name},
        "slower": cell.slower,
        "bed": asdict(cell.spec),
        "variables": _VARIABLES,
        "network": network,
        "predicted": {one.title: cells.prediction(one) for one in found},
        "jobs": jobs,
        "load": {"before": load, "after": machine.load()},
        **runs.begun(),
    }


def _round(bed: Bed, folder: Path, cell: Cell, contenders: Sequence[Found]) -> dict[str, Any]:
    output = folder / "result.json"
    output.unlink(missing_ok=True)
    (folder / "job.json").write_text(json.dumps(cells.job(cell, contenders, str(output))))
    _run(bed, ["-m", "bench.network.second_order.step", str(folder / "job.json")])
    result: dict[str, Any] = json.loads(output.read_text())
    return result


def _run(bed: Bed, arguments: Sequence[str]) -> None:
    bed.reset()
    command = [sys.executable, *arguments]
    code = launch.run(bed, "explicit", 1, command, variables=_VARIABLES, timeout_s=_LIMIT_S)
    if code != 0:
        raise RuntimeError(f"[bench.network] {' '.join(arguments[:2])} ended with code {code}")
