"""``python -m bench.optim.steps``: a step of LARS and of LAMB beside torch's and timm's.

All contenders step in turn, round after round, on tensors of their own of ResNet-50's shapes, in
float32 and host memory; a ratio is the median over the rounds of the two times of a round, so that
both saw the same machine. Writes one result file and the table of docs/optimizers.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch

from aiacc.optim import LAMB, LARS
from bench import machine
from bench.report import between_markers
from bench.shapes import elements, resnet50
from tests.support.learning.timm_optimizers import Lamb, Lars

RESULT = machine.ROOT / "bench" / "results" / "optim.json"
PAGE = machine.ROOT / "docs" / "optimizers.md"
MARK = "optim:steps"
WARM_UP = 3

#: Of all of them, as far as they have it.
_SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}

CONTENDERS: dict[str, Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]] = {
    "LARS": lambda params: LARS(params, **_SGD),
    "LARS, foreach": lambda params: LARS(params, **_SGD, foreach=True),
    "LARS, one by one": lambda params: LARS(params, **_SGD, fused=False, foreach=False),
    "LAMB": lambda params: LAMB(params),
    "torch SGD, foreach": lambda params: torch.optim.SGD(params, **_SGD, foreach=True),
    "torch SGD, default": lambda params: torch.optim.SGD(params, **_SGD),
    "torch SGD, fused": lambda params: torch.optim.SGD(params, **_SGD, fused=True),
    "torch AdamW, default": lambda params: torch.optim.AdamW(params),
    "timm Lars, default": lambda params: Lars(params, **_SGD),
    "timm Lars, foreach": lambda params: Lars(params, **_SGD, foreach=True),
    "timm Lamb, default": lambda params: Lamb(params, max_grad_norm=None),
}
#: Ours, the other, and how many times as fast ours was to be.
RATIOS = (
    ("LARS", "torch SGD, foreach", 0.8),
    ("LARS", "torch SGD, default", None),
    ("LARS", "torch SGD, fused", None),
    ("LARS", "timm Lars, default", 5.0),
    ("LARS", "timm Lars, foreach", None),
    ("LAMB", "torch AdamW, default", None),
    ("LAMB", "timm Lamb, default", None),
)


def measure(threads: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of the steps of every contender, with so many threads of torch."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    contenders = {name: make(_parameters()) for name, make in CONTENDERS.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM_UP + rounds):
        for name, optimizer in contenders.items():
            began = time.perf_counter()
            optimizer.step()
            if number >= WARM_UP:
                samples[name].append(round((time.perf_counter() - began) * 1e3, 3))
    return samples


def _parameters() -> list[torch.nn.Parameter]:
    made = []
    for _, shape in resnet50():
        parameter = torch.nn.Parameter(torch.randn(shape) * 0.05)
        parameter.grad = torch.randn(shape) * 1e-3
        made.append(parameter)
    return made


def ratio(samples: dict[str, list[float]], ours: str, other: str) -> float:
    """How many times as fast ours was, by the median over rounds."""
    return median(b / a for a, b in zip(samples[ours], samples[other], strict=True))


def table(report: dict[str, Any]) -> str:
    """Medians, and ratios with what was wanted."""
    rows = [
        ["step of 25.6 M parameters", *(f"{run['threads']} thread(s)" for run in report["runs"])]
    ]
    rows.append(["---"] * len(rows[0]))
    for name in CONTENDERS:
        medians = [median(run["samples_ms"][name]) for run in report["runs"]]
        rows.append([name, *(f"{value:.1f} ms" for value in medians)])
    for ours, other, wanted in RATIOS:
        ratios = [ratio(run["samples_ms"], ours, other) for run in report["runs"]]
        goal = "" if wanted is None else f" (goal: {wanted:g}x)"
        cells = [f"{value:.2f}x" for value in ratios]
        rows.append([f"{ours}: as fast as {other}{goal}", *cells])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    versions = report["versions"]
    lines.append(
        f"\n{report['machine']['cpu']}, {report['machine']['cores']} cores, torch "
        f"{versions['torch']}, timm {versions['timm']}, commit {report['commit'][:9]}, medians of "
        f"{len(report['runs'][0]['samples_ms']['LARS'])} rounds, load {report['load_before'][0]:g} "
        "before."
    )
    return "\n".join(lines)


def main() -> int:
    """Measure, write the result file and the page, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.optim.steps", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULT, help="file to write (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="(%(default)s)")
    parser.add_argument("--threads", default="1,2", help="of torch (%(default)s)")
    options = parser.parse_args()
    report: dict[str, Any] = {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "versions": {**machine.versions(), "timm": metadata.version("timm")},
        **machine.commit(),
        "load_before": machine.load(),
        "elements": elements(resnet50()),
        "runs": [
            {"threads": threads, "samples_ms": measure(threads, options.rounds)}
            for threads in map(int, options.threads.split(","))
        ],
        "load_after": machine.load(),
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    made = table(report)
    print(made)
    if options.json == RESULT:
        page = between_markers(PAGE.read_text(), made, PAGE.name, MARK)
        PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
