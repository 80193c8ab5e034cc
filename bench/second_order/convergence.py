"""Row convergence.kfac: seconds and steps to a target, K-FAC beside others.

Everybody has as many trials, with seed 0; the best, by seconds, runs with the other seeds. Seconds
are CPU seconds of one thread in steps, without measurements of the target, so that what else the
machine does matters little.
"""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch

import aiacc.torch as hvd
from bench.plots import panels, points
from bench.record import Run, part
from bench.second_order.contenders import CONTENDERS, TRIALS, Tuned, trial
from bench.second_order.workloads import AUTOENCODER, DIGITS, Workload
from bench.tables import table
from bench.training.seeds import Training, spread, trained

_CELLS = {"autoencoder": AUTOENCODER, "digits": DIGITS}
CELLS = tuple(_CELLS)
SEEDS = 5
OURS, PEERS = ("kfac",), tuple(name for name in CONTENDERS if name != "kfac")
TITLES = {name: one.title for name, one in CONTENDERS.items()}
#: Steps from one measurement to the next; one of so many times the first ends a training.
EVERY, DIVERGED = 10, 10.0


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Trials of all contenders, then the best of each with all seeds; rounds: seeds, and trials."""
    work = _CELLS[cell]
    trials: dict[str, list[Training]] = {name: [] for name in CONTENDERS}
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    hvd.init()
    for number in range(rounds or TRIALS):
        for name, ones in trials.items():
            ones.append(_training(work, name, trial(name, number), 0))
    tuned = {name: best_of(ones)["tuned"] for name, ones in trials.items()}

    def train(seed: int, names: list[str]) -> dict[str, Training]:
        return {name: _training(work, name, tuned[name], seed) for name in names}

    found = trained(CONTENDERS, rounds or SEEDS, train, lambda one: float(one["seconds"]))
    hvd.shutdown()
    return {"title": work.title, "unit": "s", "trials": trials, **found}


def _training(work: Workload, name: str, tuned: Tuned, seed: int) -> Training:
    """One training until the target, or the last step, or it diverges."""
    gc.collect()
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = work.model()
    steppers = CONTENDERS[name].make(model, tuned)
    inputs, targets = work.learned()
    seconds, below, lowest = 0.0, 0, math.inf
    with torch.no_grad():
        first = work.measure(model)
    for step in range(1, work.steps + 1):
        batch = torch.randint(len(inputs), (work.batch,), generator=random)
        given, wanted = inputs[batch], targets[batch]
        began = time.process_time()
        model.zero_grad()
        outputs = model(given)
        if name == "kfac":
            steppers[0].sample(outputs, work.loss)
        work.loss(outputs, wanted).backward()
        for one in steppers:
            one.step()
        seconds += time.process_time() - began
        if step % EVERY == 0:
            with torch.no_grad():
                value = work.measure(model)
            lowest = min(lowest, value) if math.isfinite(value) else lowest
            below = below + 1 if value <= work.target else 0
            if below == work.twice or not math.isfinite(value) or value > DIVERGED * first:
                break
    return {
        "tuned": tuned,
        "reached": below == work.twice,
        "lowest": lowest if math.isfinite(lowest) else None,
        "steps": step,
        "seconds": round(seconds, 4),
    }


def best_of(trials: Sequence[Training]) -> Training:
    """The trial that reached the target in the least time; if none did, that which came closest."""
    return min(
        trials,
        key=lambda one: (not one["reached"], one["seconds"] if one["reached"] else _lowest(one)),
    )


def _lowest(one: Training) -> float:
    return math.inf if one["lowest"] is None else float(one["lowest"])


def tables(runs: Sequence[Run]) -> str:
    """Markdown: a line for each contender of a training. Pure."""
    head = (
        *("training", "optimizer", "trials that reached it", "best trial", "seeds that reached it"),
        *("CPU seconds", "steps", "ms per step", "least value"),
    )
    lines = []
    for run in runs:
        for name, contender in CONTENDERS.items():
            trials, ones = run["trials"][name], run["trainings"][name]
            good = [one for one in ones if one["reached"]]
            lines.append(
                [
                    run["title"],
                    contender.title,
                    f"{sum(one['reached'] for one in trials)} of {len(trials)}",
                    ", ".join(f"{what} {value:g}" for what, value in ones[0]["tuned"].items()),
                    f"{len(good)} of {len(ones)}",
                    _taken([one["seconds"] for one in good], "{:.2f}", len(ones)),
                    _taken([one["steps"] for one in good], "{:.0f}", len(ones)),
                    f"{1e3 * fmean(one['seconds'] / one['steps'] for one in ones):.2f}",
                    f"{fmean(map(_lowest, ones)):.4g}",
                ]
            )
    return table(head, lines)


def contests(run: Run) -> list[Run]:
    """CPU seconds of those that reached the target with all seeds."""
    reached = [key for key, ones in run["trainings"].items() if all(x["reached"] for x in ones)]
    return [part(run, "CPU time to the target", dict(zip(reached, reached, strict=True)))]


def _taken(values: Sequence[float], form: str, count: int) -> str:
    """Mean and range, if all seeds reached the target; else what is known of them."""
    if 0 < len(values) < count:
        return f"{form.format(min(values))} to {form.format(max(values))}, not always"
    return spread(values, form) if values else "never"


def plot(runs: Sequence[Run]) -> Any:
    """CPU seconds and steps until the target, a point for each seed that reached it."""
    figure, axes = panels(2 * len(runs), columns=2, height=2.2)
    for row, run in enumerate(runs):
        for axis, what in zip(axes[2 * row : 2 * row + 2], ("seconds", "steps"), strict=True):
            values = {
                title: [one[what] for one in run["trainings"][name] if one["reached"]]
                for name, title in TITLES.items()
            }
            points(axis, values, [CONTENDERS["kfac"].title])
            axis.set_xlim(left=0)
            axis.set_title(f"{run['title']}, to the target", fontsize=8)
            axis.set_xlabel("CPU seconds" if what == "seconds" else "steps")
    return figure
