"""``python -m bench.training.compression``: final losses of trainings with compressed gradients.

The convolutional network of examples/digits.py and a transformer on the docstrings of Python's
library, on ranks of this machine that talk by TCP, as ranks of different hosts would. Each
contender runs with several seeds; a seed gives all of them the same parameters and the same data.
With --mbit each rank is a virtual host with a capped interface, so that seconds count, too (needs
root, see bench/README.md).
Results are written after each training, and what the file has is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from bench.machine import ROOT
from bench.network import launch, runs
from bench.network.bed import BedError, bed_for
from bench.network.plan import Spec
from bench.training.compression.contenders import DIGITS, PLAIN, SEEDS, TEXT, Task, tasks
from bench.training.compression.report import RESULT, report

_LIMIT_S = 4 * 3600.0


def main() -> int:
    """Do what the command line says; the exit code."""
    options = _parser().parse_args()
    if options.report or options.write:
        report(options.json, write=options.write)
        return 0
    names = options.only.split(",") if options.only else []
    try:
        seeds = [int(seed) for seed in options.seeds.split(",")]
        asked = tasks(options.workload, options.ranks, names, options.steps, seeds, options.mbit)
    except ValueError as error:
        print(f"[bench.training] {error}", file=sys.stderr)
        return 2
    done = [Task(**run["task"]) for run in runs.kept(options.json, add=True)]
    try:
        return _run([task for task in asked if task not in done], options)
    except BedError as error:
        print(f"[bench.training] {error}", file=sys.stderr)
        return 2


def _run(left: list[Task], options: argparse.Namespace) -> int:
    if not left:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        output = str(options.json.resolve())
        job.write_text(json.dumps({"output": output, "tasks": [asdict(task) for task in left]}))
        # Of the modules of this interpreter, as tests do.
        worker = [sys.executable, "-m", "bench.training.compression.worker", str(job)]
        variables = {"AIACC_ENGINE": "tcp", "OMP_NUM_THREADS": "1"}
        if options.mbit:
            spec = Spec(name="text", hosts=options.ranks, flow_mbit=0, nic_mbit=options.mbit)
            with bed_for(spec) as bed:
                return launch.run(
                    bed, "explicit", 1, worker, variables=variables, timeout_s=_LIMIT_S
                )
        command = [sys.executable, "-m", "aiacc.run", "-np", str(options.ranks), *worker]
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, check=False
        ).returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.training.compression",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workload", choices=(DIGITS, TEXT, PLAIN), default=DIGITS)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--mbit", type=float, default=0.0, metavar="RATE", help="of each rank's interface"
    )
    parser.add_argument("--only", default="", metavar="A,B", help="some contenders")
    parser.add_argument("--steps", type=int, metavar="N", help="of a training")
    parser.add_argument(
        "--seeds", default=",".join(map(str, SEEDS)), metavar="A,B", help="(default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, default=RESULT, help="result file (%(default)s)")
    parser.add_argument("--report", action="store_true", help="print the table, train nothing")
    parser.add_argument(
        "--write", action="store_true", help="the table of docs/compression.md and the plot"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
