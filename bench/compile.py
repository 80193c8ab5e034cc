"""``python -m bench.compile``: a training step eager, compiled whole and compiled by blocks.

Writes one result file and, with ``--write``, the table of docs/torch-compile.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench import machine
from bench.report import between_markers

RESULTS = machine.ROOT / "bench" / "results" / "compile.json"
PAGE = machine.ROOT / "docs" / "torch-compile.md"
MARK = "bench:compile"
_WAYS = ("eager", "whole", "blocks")
_TITLES = {
    "eager": "eager",
    "whole": "`torch.compile(model)`",
    "blocks": "`compile_blocks(model)`",
}
_WARM_UP = 5


class Block(torch.nn.Module):
    """Half of a transformer's layer: the half that has most of its parameters."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Add what the layers make of ``value``."""
        hidden = torch.nn.functional.gelu(self.wide(self.norm(value)))
        return value + torch.as_tensor(self.narrow(hidden))


def main() -> int:
    """Run the ranks, write the file, print the table."""
    options = _options()
    if options.rank >= 0:
        _measure(options)
        return 0
    if options.table:
        print(table(json.loads(options.json.read_text())))
        return 0
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    before = machine.load()
    ranks = _run(options)
    report = {
        "command": ["python", "-m", "bench.compile", *sys.argv[1:]],
        "began": began,
        **machine.commit(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "ranks": options.ranks,
        "width": options.width,
        "blocks": options.blocks,
        "batch": options.batch,
        "load_average": {"before": before, "after": machine.load()},
        "by_rank": ranks,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    text = table(report)
    print(text)
    if options.write:
        PAGE.write_text(between_markers(PAGE.read_text(), text, str(PAGE), MARK))
    return 0


def table(report: dict[str, Any]) -> str:
    """Markdown: one line per way to run the model."""
    lines = [
        "| model | step | backward | wait after backward | half of the bytes submitted after |",
        "| --- | --- | --- | --- | --- |",
    ]
    for way in _WAYS:
        ranks = [rank[way] for rank in report["by_rank"]]
        step, backward, wait, half = (
            median(max(values) for values in zip(*(rank[key] for rank in ranks), strict=True))
            for key in ("step_ms", "backward_ms", "wait_ms", "half_submitted")
        )
        lines.append(
            f"| {_TITLES[way]} | {step:.1f} ms | {backward:.1f} ms | {wait:.1f} ms "
            f"| {100 * half:.0f} % of backward |"
        )
    commit = report["commit"][:12] + (" with local changes" if report["dirty"] else "")
    cpu, load = report["machine"], report["load_average"]
    lines += [
        "",
        f"Measured {report['began']} at commit {commit}: {report['ranks']} ranks on {cpu['cpu']}, "
        f"{cpu['cores']} cores, torch {report['versions']['torch']}; {report['blocks']} blocks of "
        f"width {report['width']}, batch {report['batch']}; load average "
        f"{load['before'][0]} before. Medians over the steps of the slowest rank of each; samples "
        f"in `bench/results`; command: `{' '.join(report['command'])}`.",
    ]
    return "\n".join(lines)


def _run(options: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="aiacc-bench-") as folder:
        command = [sys.executable, "-m", "bench.compile", *sys.argv[1:], "--out", folder]
        variables = {
            "AIACC_RENDEZVOUS_FILE": str(Path(folder) / "rendezvous"),
            "AIACC_SIZE": str(options.ranks),
            "OMP_NUM_THREADS": "1",
        }
        ranks = [
            subprocess.Popen(
                [*command, "--rank", str(rank)],
                env=os.environ | variables | {"AIACC_RANK": str(rank)},
                cwd=machine.ROOT,
            )
            for rank in range(options.ranks)
        ]
        try:
            codes = [rank.wait(options.timeout) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            raise RuntimeError(f"ranks ended with {codes} (expected 0); see their output above")
        files = [Path(folder) / f"rank{rank}.json" for rank in range(options.ranks)]
        return [json.loads(file.read_text()) for file in files]


def _measure(options: argparse.Namespace) -> None:
    """What one rank does."""
    import aiacc.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    found = {way: _train(way, options) for way in _WAYS}
    hvd.shutdown()
    (options.out / f"rank{options.rank}.json").write_text(json.dumps(found))


def _train(way: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Times of the steps of one way to run the model."""
    import aiacc.torch as hvd

    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(*(Block(options.width) for _ in range(options.blocks)))
    run = torch.compile(model) if way == "whole" else model
    if way == "blocks":
        hvd.compile_blocks(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1e-6), model.named_parameters()
    )
    arrivals: list[tuple[float, int]] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda parameter: arrivals.append((time.perf_counter(), parameter.numel()))
        )
    batch = torch.randn(options.batch, options.width)
    keys = ("step_ms", "backward_ms", "wait_ms", "half_submitted")
    samples: dict[str, list[float]] = {key: [] for key in keys}
    for step in range(_WARM_UP + options.iterations):
        hvd.barrier()
        arrivals.clear()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = run(batch).square().mean()
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        optimizer.synchronize()
        reduced = time.perf_counter()
        with optimizer.skip_synchronize():
            optimizer.step()
        end = time.perf_counter()
        if step >= _WARM_UP:
            samples["step_ms"].append((end - begin) * 1e3)
            samples["backward_ms"].append((backward - forward) * 1e3)
            samples["wait_ms"].append((reduced - backward) * 1e3)
            half = (_half_way(arrivals) - forward) / (backward - forward)
            samples["half_submitted"].append(half)
    return samples


def _half_way(arrivals: list[tuple[float, int]]) -> float:
    """When half of the elements had come."""
    total, seen = sum(count for _, count in arrivals), 0
    for moment, count in arrivals:
        seen += count
        if 2 * seen >= total:
            return moment
    raise ValueError("no gradient came (expected one per parameter)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compile", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULTS, help="result file (%(default)s)")
    parser.add_argument("-np", dest="ranks", type=int, default=2, help="ranks (%(default)s)")
    parser.add_argument("--width", type=int, default=512, help="of a block (%(default)s)")
    parser.add_argument("--blocks", type=int, default=8, help="in the model (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="rows per rank (%(default)s)")
    parser.add_argument("--iterations", type=int, default=40, help="steps (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds (%(default)s)")
    parser.add_argument("--write", action="store_true", help="update docs/torch-compile.md")
    parser.add_argument("--table", action="store_true", help="print the table of the file only")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
