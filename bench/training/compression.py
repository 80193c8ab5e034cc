"""Row convergence.compression: final losses of trainings whose gradients travel compressed.

The convolutional network of examples/digits.py and a transformer on the docstrings of Python's
library, on ranks of this machine that talk by TCP, as ranks of different hosts would. In a cell
with a rate each rank is a virtual host with a capped interface, so that seconds count, too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import Any

from bench import job
from bench.plots import WIDTH, points, pyplot
from bench.record import Run
from bench.tables import table
from bench.training.contenders import CONTENDERS
from bench.training.seeds import Training, spread, trained

SEEDS = 5
#: Losses that are kept are means over so many steps.
INTERVAL = 20
#: Share of the steps over which a final loss is averaged.
FINAL_SHARE = 0.1
#: As a factor: the loss to which bytes are counted, of which so many intervals have to be the mean.
TARGET, SMOOTHED = 1.05, 5
_LIMIT_S = 4 * 3600.0
_DENSE = CONTENDERS["dense"].title
#: Percent more than float32: what is above is no point of the plot.
_SHOWN = 60.0


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes:
        workload: Key of `workloads.WORKLOADS`.
        ranks: Number of them.
        steps: Until the learning rate is 0; digits have as many epochs on any number of ranks.
        names: Contenders, float32 first.
        mbit: Rate of the interface that each rank has to itself, in Mbit/s; 0: no network.
    """

    workload: str
    ranks: int
    steps: int
    names: tuple[str, ...]
    mbit: float = 0.0


_SPARSE = ("dense", "mstopk", "mstopk_warm")
_LONG = (*_SPARSE, "mstopk_nesterov_unmasked_warm")
_TEXT = (*_SPARSE, "bf16", "int8", "int4", "randomk", "powersgd", "mstopk_alone")
_CAPPED = (*_SPARSE, "bf16", "int8", "powersgd", "mstopk_alone")
_CELLS = {
    "digits:4": Cell("digits", 4, 660, tuple(CONTENDERS)),
    "digits:4:long": Cell("digits", 4, 2640, _LONG),
    "text:2": Cell("text", 2, 1500, _TEXT),
    "plain_text:4:100": Cell("plain_text", 4, 1500, _CAPPED, mbit=100),
}
CELLS = tuple(_CELLS)
_TITLES = {"digits": "digits", "text": "text", "plain_text": "text, no momentum"}


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Trainings with ``rounds`` seeds: a job for each seed, which trains all contenders."""
    one = _CELLS[cell]

    def train(seed: int, names: list[str]) -> dict[str, Training]:
        task = {"workload": one.workload, "steps": one.steps, "seed": seed, "names": names}
        found: dict[str, Training] = _job(one, task)[0]
        return found

    rate = f", {one.mbit:g} Mbit/s" if one.mbit else ""
    title = f"{_TITLES[one.workload]}, {one.steps} steps, {one.ranks} ranks{rate}"
    return {
        "title": title,
        "unit": "loss",
        **trained(one.names, rounds or SEEDS, train, final_loss),
    }


def _job(one: Cell, task: dict[str, Any]) -> list[Any]:
    work, variables = "bench.training.compression:work", {"AIACC_ENGINE": "tcp"}
    if not one.mbit:
        return job.run(work, task, ranks=one.ranks, variables=variables, timeout_s=_LIMIT_S)
    from bench.bed.bed import bed_for
    from bench.bed.plan import Spec

    variables["OMP_NUM_THREADS"] = "1"
    with bed_for(Spec(name="text", hosts=one.ranks, flow_mbit=0, nic_mbit=one.mbit)) as bed:
        return job.run_on(bed, work, task, variables=variables, timeout_s=_LIMIT_S)


def work(task: dict[str, Any]) -> dict[str, Training]:
    """What every rank does: trainings one after the other, with one seed."""
    import torch

    import aiacc.torch as hvd

    torch.set_num_threads(1)
    found = {}
    for name in task["names"]:
        hvd.init()
        found[name] = _training(task["workload"], task["steps"], task["seed"], name)
        hvd.shutdown()
        gc.collect()
    return found


def _training(workload: str, steps: int, seed: int, name: str) -> Training:
    import torch

    import aiacc
    import aiacc.torch as hvd
    from bench.training.workloads import WORKLOADS

    contender = CONTENDERS[name]
    training = WORKLOADS[workload](seed, steps, contender)
    optimizer: Any = hvd.DistributedOptimizer(
        training.optimizer,
        training.model.named_parameters(),
        compression=contender.policy(steps),
    )
    hvd.broadcast_parameters(training.model.state_dict(), root_rank=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, training.learning_rate)
    sent, ended = [aiacc.stats()["data_bytes"]], [time.perf_counter()]
    losses = torch.zeros(steps)
    for step, batch in enumerate(training.batches):
        optimizer.zero_grad()
        loss = training.loss(*batch)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses[step] = loss.detach()
        if (step + 1) % INTERVAL == 0:
            sent.append(aiacc.stats()["data_bytes"])
            ended.append(time.perf_counter())
    means = hvd.allreduce(losses, name="losses").view(-1, INTERVAL).mean(1)
    return {
        "losses": [float(f"{mean:.6g}") for mean in means.tolist()],
        "held_out": training.held_out(),
        "bytes": [int(after - before) for before, after in pairwise(sent)],
        "seconds": [round(after - before, 4) for before, after in pairwise(ended)],
    }


def final_loss(one: Training) -> float:
    """Mean training loss over the last tenth of the steps."""
    last = max(1, round(FINAL_SHARE * len(one["losses"])))
    return fmean(one["losses"][-last:])


def gap(ours: float, dense: float) -> float:
    """By how many percent a loss is higher than that of float32."""
    return 100 * (ours - dense) / dense


def to_target(one: Training, dense: Training, amounts: Sequence[float]) -> float | None:
    """The sum of what intervals took until losses come to TARGET of float32's; None: never."""
    target, losses = TARGET * final_loss(dense), one["losses"]
    for end, total in enumerate(accumulate(amounts), 1):
        if end >= SMOOTHED and fmean(losses[end - SMOOTHED : end]) <= target:
            return float(total)
    return None


def _pairs(run: Run) -> Iterator[tuple[str, list[tuple[Training, Training]]]]:
    """Titles of contenders, and their trainings, each with that of float32 with the same seed."""
    for name, contender in CONTENDERS.items():
        if name in run["trainings"]:
            both = zip(run["trainings"][name], run["trainings"]["dense"], strict=False)
            yield contender.title, list(both)


def tables(runs: Sequence[Run]) -> str:
    """Markdown: a line for each contender of a training; seconds, where the network counts."""
    head = (
        *("training", "gradients as", "seeds", "final loss", "more than float32"),
        *("held-out loss", "more than float32", "KiB per step", "MiB to target"),
    )
    lines = [[run["title"], *line] for run in runs for line in _losses(run)]
    timed = [run for run in runs if _CELLS[run["cell"]].mbit]
    found = [table(head, lines)]
    if timed:
        first = ["training", "gradients as", "seeds", "ms per step"]
        lines = [[run["title"], *line] for run in timed for line in _seconds(run)]
        found.append(table([*first, "seconds to target", "of float32's"], lines))
    return "\n\n".join(found)


def _losses(run: Run) -> Iterator[list[str]]:
    for title, pairs in _pairs(run):
        ones = [one for one, _ in pairs]
        is_dense = title == _DENSE
        final = [gap(final_loss(one), final_loss(dense)) for one, dense in pairs]
        held_out = [gap(one["held_out"], dense["held_out"]) for one, dense in pairs]
        steps = [INTERVAL * len(one["losses"]) for one in ones]
        sent = fmean(sum(one["bytes"]) / step for one, step in zip(ones, steps, strict=True))
        yield [
            *(title, str(len(ones)), f"{fmean(map(final_loss, ones)):.4f}"),
            "" if is_dense else spread(final, "{:+.1f}", " %"),
            f"{fmean(one['held_out'] for one in ones):.4f}",
            "" if is_dense else spread(held_out, "{:+.1f}", " %"),
            f"{sent / 1024:.1f}",
            _text(_mean([to_target(*pair, pair[0]["bytes"]) for pair in pairs]), 2**20),
        ]


def _seconds(run: Run) -> Iterator[list[str]]:
    dense: float | None = None
    for title, pairs in _pairs(run):
        known = [pair for pair in pairs if "seconds" in pair[0]]
        if not known:
            continue
        took = _mean([to_target(*pair, pair[0]["seconds"]) for pair in known])
        dense = took if dense is None else dense
        each = [median(one["seconds"]) / INTERVAL for one, _ in known]
        factor = "" if took is None or dense is None else f"{took / dense:.2f}x"
        yield [title, str(len(known)), f"{1000 * fmean(each):.1f}", _text(took, 1.0), factor]


def _mean(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return fmean(known) if len(known) == len(amounts) else None


def _text(amount: float | None, unit: float) -> str:
    return "never" if amount is None else f"{amount / unit:.1f}"


def plot(runs: Sequence[Run]) -> Any:
    """A panel for each training: how much higher final losses are than that of float32."""
    heights = [len(run["trainings"]) + 2 for run in runs]
    figure, axes = pyplot().subplots(
        len(runs),
        figsize=(WIDTH, 0.2 * sum(heights)),
        gridspec_kw={"height_ratios": heights},
        squeeze=False,
        sharex=True,
    )
    for axis, run in zip(axes.flat, runs, strict=True):
        values = {
            title: [gap(final_loss(one), final_loss(dense)) for one, dense in pairs]
            for title, pairs in _pairs(run)
            if title != _DENSE
        }
        points(axis, values, list(values), limit=_SHOWN)
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set_title(run["title"], fontsize=8)
    axes[-1, 0].set_xlim(right=_SHOWN + 15)
    axes[-1, 0].set_xlabel("final loss, % more than float32 with the same seed")
    return figure
