"""``python -m bench.optim.muon``: steps of torch.optim.Muon, and divided among 2 and 4 ranks.

The matrices are those of four transformer blocks of a width (4 of d x d, then 4 d x d and d x 4 d),
float32 in host memory, with one thread of torch in each rank. All ranks step at the same time in
every contender, for in a job they would. A step is as long as that of the slowest rank; steps of
the contenders alternate. After that the norms of LARS are divided likewise. Writes one result file
and the table of docs/optimizers.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from aiacc.planning.cost import duration
from bench import machine
from bench.report import between_markers
from bench.shapes import resnet50

RESULT = machine.ROOT / "bench" / "results" / "muon.json"
PAGE = machine.ROOT / "docs" / "optimizers.md"
MARK = "optim:muon"
WIDTHS = "8,16,32,64,128,256,512"
BLOCKS = 4
_TIMEOUT_S = 1800


def worker(widths: list[int], rounds: int, output: Path) -> None:
    """What every rank runs; the first writes the samples."""
    import torch

    import aiacc.torch as hvd
    from aiacc.collectives.objects import maxima
    from aiacc.torch.parallel.mapping import MEASURED
    from examples.parallel_muon import ParallelMuon

    hvd.init()
    torch.set_num_threads(1)
    rows = []
    for width in widths:
        shapes = [(width, width)] * 4 + [(4 * width, width), (width, 4 * width)]
        contenders: dict[str, Any] = {}
        for name in ("torch", "divided", "decides"):
            torch.manual_seed(0)
            params = [torch.nn.Parameter(torch.randn(s) * 0.02) for s in shapes * BLOCKS]
            for parameter in params:
                parameter.grad = torch.randn(parameter.shape)
            contenders[name] = (torch.optim.Muon if name == "torch" else ParallelMuon)(params)
        contenders["divided"].divide = True
        samples: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(MEASURED + 1 + rounds):
            for name, optimizer in contenders.items():
                hvd.barrier()
                began = time.perf_counter()
                optimizer.step()
                (slowest,) = maxima([time.perf_counter() - began], "bench.slowest")
                if number > MEASURED:
                    samples[name].append(round(slowest * 1e3, 3))
        decision = contenders["decides"].decision
        row = {"width": width, "samples_ms": samples, "decision": decision.reason}
        rows.append({**row, "divided": decision.divided, "predicted_s": decision.divided_s})
    norms = _norms(rounds)
    if hvd.rank() == 0:
        output.write_text(json.dumps({"rows": rows, "norms": norms}))
    hvd.shutdown()


def _norms(rounds: int) -> dict[str, Any]:
    """What LARS's norms take, of ResNet-50's parameters and gradients, by all and divided."""
    import torch

    import aiacc.torch as hvd
    from aiacc.collectives.objects import maxima
    from aiacc.torch.parallel.mapping import MEASURED

    tensors = [torch.randn(shape) for _, shape in resnet50() for _ in range(2)]
    samples: dict[str, list[float]] = {"all": [], "divided": []}
    for number in range(MEASURED + 1 + rounds):
        for name, divide in (("all", False), ("divided", True)):
            hvd.barrier()
            began = time.perf_counter()
            mapped = hvd.parallel_map(
                tensors, torch.linalg.vector_norm, name=f"norms.{name}", divide=divide
            )
            (slowest,) = maxima([time.perf_counter() - began], "bench.slowest")
            if number > MEASURED:
                samples[name].append(round(slowest * 1e3, 3))
    return {"samples_ms": samples, "decision": mapped.decision.reason}


def run(ranks: int, widths: str, rounds: int) -> dict[str, Any]:
    """Rows of a job of so many ranks."""
    launcher = Path(sys.executable).with_name("aiaccrun")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.json"
        command = [str(launcher), "-np", str(ranks), sys.executable, "-m", "bench.optim.muon"]
        command += ["--widths", widths, "--rounds", str(rounds), "--worker", str(output)]
        subprocess.run(command, check=True, cwd=machine.ROOT, timeout=_TIMEOUT_S)
        return {"ranks": ranks, **json.loads(output.read_text())}


def table(report: dict[str, Any]) -> str:
    """Medians, the ratio of divided to torch's, and what was decided."""
    lines = [
        "| ranks | width | torch.optim.Muon | divided | as fast | predicted | decided |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for job in report["jobs"]:
        for row in job["rows"]:
            samples = row["samples_ms"]
            pairs = zip(samples["torch"], samples["divided"], strict=True)
            ratio = median(serial / divided for serial, divided in pairs)
            lines.append(
                f"| {job['ranks']} | {row['width']} | {duration(median(samples['torch']) / 1e3)} "
                f"| {duration(median(samples['divided']) / 1e3)} | {ratio:.2f}x "
                f"| {duration(row['predicted_s'])} "
                f"| {'to divide' if row['divided'] else 'each does all'} |"
            )
    for job in report["jobs"]:
        every, divided = (median(job["norms"]["samples_ms"][name]) for name in ("all", "divided"))
        lines.append(
            f"\nThe 322 norms of a step of LARS, of ResNet-50's parameters and gradients, at "
            f"{job['ranks']} ranks: {duration(every / 1e3)} if each computes all, "
            f"{duration(divided / 1e3)} divided."
        )
    lines.append(
        f"\n{report['machine']['cpu']}, {report['machine']['cores']} cores, torch "
        f"{report['versions']['torch']}, commit {report['commit'][:9]}, medians of "
        f"{len(report['jobs'][0]['rows'][0]['samples_ms']['torch'])} steps, load "
        f"{report['load_before'][0]:g} before."
    )
    return "\n".join(lines)


def main() -> int:
    """Measure, write the result file and the page, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.optim.muon", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULT, help="file to write (%(default)s)")
    parser.add_argument("--ranks", default="2,4", help="jobs (%(default)s)")
    parser.add_argument("--widths", default=WIDTHS, help="of the matrices (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker([int(width) for width in options.widths.split(",")], options.rounds, options.worker)
        return 0
    report: dict[str, Any] = {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "versions": machine.versions(),
        **machine.commit(),
        "load_before": machine.load(),
        "jobs": [
            run(int(ranks), options.widths, options.rounds) for ranks in options.ranks.split(",")
        ],
        "load_after": machine.load(),
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    made = table(report)
    print(made)
    if options.json == RESULT:
        PAGE.write_text(between_markers(PAGE.read_text(), made, PAGE.name, MARK))
    return 0


if __name__ == "__main__":
    sys.exit(main())
