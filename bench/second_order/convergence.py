"""``python -m bench.second_order.convergence``: seconds and steps to a target, K-FAC beside others.

Everybody has as many trials, with seed 0; the best, by seconds, runs with the other seeds. Seconds
are CPU seconds of one thread in steps, without measurements of the target, so that what else the
machine does matters little; wall-clock seconds are in the file, too. Results are written after each
training, and what the file has is not run again.

SOAP is from PyPI and only this command needs it:

    pip install --no-deps --target /tmp/peers pytorch_optimizer==4.1.0
    PYTHONPATH=/tmp/peers python -m bench.second_order.convergence
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import aiacc.torch as hvd
from bench.machine import ROOT
from bench.network import runs
from bench.second_order.contenders import CONTENDERS, SEEDS, TRIALS, Contender, contender, trial
from bench.second_order.convergence_report import best_of, report, runs_of
from bench.second_order.workloads import WORKLOADS, Workload, workload

RESULT = ROOT / "bench" / "results" / "kfac_convergence.json"
#: A measurement of so many times the first one ends a training.
DIVERGED = 10.0
#: Points of a curve that are kept, the last aside; of trials only that is.
POINTS = 40


def trained(work: Workload, one: Contender, tuned: dict[str, float], seed: int) -> dict[str, Any]:
    """One training until the target, or the last step, or it diverges."""
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = work.model()
    stepper = one.make(model, tuned, work.loss)
    inputs, targets = work.learned()
    cpu_s = wall_s = 0.0
    curve: list[tuple[int, float, float, float]] = []
    below, reached = 0, False
    with torch.no_grad():
        first = work.measure(model)
    for step in range(1, work.steps + 1):
        batch = torch.randint(len(inputs), (work.batch,), generator=random)
        given, wanted = inputs[batch], targets[batch]
        wall, cpu = time.perf_counter(), time.process_time()
        stepper.zero_grad()
        outputs = model(given)
        stepper.before_backward(outputs)
        work.loss(outputs, wanted).backward()
        stepper.step()
        cpu_s += time.process_time() - cpu
        wall_s += time.perf_counter() - wall
        if step % work.every == 0:
            with torch.no_grad():
                value = work.measure(model)
            curve.append((step, round(cpu_s, 4), round(wall_s, 4), float(f"{value:.5g}")))
            below = below + 1 if value <= work.target else 0
            reached = below == work.twice
            if reached or not math.isfinite(value) or value > DIVERGED * first:
                break
    lowest = min((point[3] for point in curve if math.isfinite(point[3])), default=None)
    return {"reached": reached, "lowest": lowest, "curve": curve}


def thinned(curve: Sequence[Any], points: int) -> list[Any]:
    """At most so many points in equal distances, and the last."""
    apart = max(1, -(-len(curve) // points)) if points else len(curve)
    return [*curve[apart - 1 : -1 : apart], curve[-1]]


def _run(work: Workload, ones: Sequence[Contender], options: argparse.Namespace) -> None:
    """What is missing of a workload: all trials, then everybody with one seed before the next."""
    for one in ones:
        for number in range(options.trials):
            _once(work, one, trial(one, number), 0, options.json)
    for seed in SEEDS[: options.seeds]:
        for one in ones:
            trials, _ = runs_of(runs.kept(options.json, add=True), work, one.name)
            _once(work, one, best_of(trials)["tuned"], seed, options.json)


def _once(work: Workload, one: Contender, tuned: dict[str, float], seed: int, path: Path) -> None:
    task = {"workload": work.name, "contender": one.name, "tuned": tuned, "seed": seed}
    kept = runs.kept(path, add=True)
    if any(all(run[key] == value for key, value in task.items()) for run in kept):
        return
    gc.collect()
    found = trained(work, one, tuned, seed)
    found["curve"] = thinned(found["curve"], POINTS if seed else 0)
    runs.save(path, [*kept, {**task, **found, **runs.begun()}])
    step, cpu_s, _, value = found["curve"][-1]
    print(
        f"{work.name}, {one.name}, {tuned}, seed {seed}: "
        f"{'reached' if found['reached'] else 'not reached'}, {value:.4g} after {step} steps, "
        f"{cpu_s:.2f} s",
        flush=True,
    )


def _chosen(text: str, known: Sequence[Any], find: Any) -> list[Any]:
    return [find(name) for name in text.split(",")] if text else list(known)


def main() -> int:
    """Do what the command line says; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.second_order.convergence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, default=RESULT, help="result file (%(default)s)")
    parser.add_argument("--only", default="", metavar="A,B", help="some contenders")
    parser.add_argument("--workloads", default="", metavar="A,B", help="some workloads")
    parser.add_argument("--trials", type=int, default=TRIALS, metavar="N", help="(%(default)s)")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), metavar="N", help="(%(default)s)")
    parser.add_argument("--report", action="store_true", help="print the table, train nothing")
    parser.add_argument("--write", action="store_true", help="table of docs/kfac.md, and the plot")
    options = parser.parse_args()
    if options.report or options.write:
        report(options.json, write=options.write)
        return 0
    try:
        works = _chosen(options.workloads, WORKLOADS, workload)
        ones = _chosen(options.only, CONTENDERS, contender)
    except ValueError as error:
        print(f"[bench.second_order] {error}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    hvd.init()
    for work in works:
        _run(work, ones, options)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
