"""One rank of a job that runs trainings, one after the other; rank 0 adds each to a result file.

Started by `bench.training.compression`, with the path of a JSON file. A seed gives all contenders
the same parameters and the same data.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import aiacc
import aiacc.torch as hvd
from bench.network import runs
from bench.training.compression.contenders import DIGITS, TEXT, Task, contender
from bench.training.compression.workloads import digits, text

#: Losses of a result file are means over so many steps.
INTERVAL = 20


def main() -> None:
    """Run the trainings."""
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    for number, fields in enumerate(job["tasks"]):
        task = Task(**fields)
        hvd.init()
        found = _trained(task)
        rank = hvd.rank()
        hvd.shutdown()
        gc.collect()
        if rank == 0:
            _record(Path(job["output"]), task, found)
            print(
                f"{number + 1}/{len(job['tasks'])} {task.workload} on {task.ranks} ranks, "
                f"{task.contender}, seed {task.seed}: loss {found['losses'][-1]:.4f}, held out "
                f"{found['held_out']:.4f}, {found['seconds']:.0f} s",
                flush=True,
            )


def _trained(task: Task) -> dict[str, Any]:
    if task.workload == DIGITS:
        one = contender(task.contender)
        training = digits(task.seed, task.steps, one.momentum, nesterov=one.nesterov)
    else:
        training = text(task.seed, task.steps, momentum=task.workload == TEXT)
    optimizer: Any = hvd.DistributedOptimizer(
        training.optimizer,
        training.model.named_parameters(),
        compression=contender(task.contender).policy(task.steps),
    )
    hvd.broadcast_parameters(training.model.state_dict(), root_rank=0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, training.learning_rate)
    begun = time.perf_counter()
    sent, ended = [aiacc.stats()["data_bytes"]], [begun]
    losses = torch.zeros(task.steps)
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
    seconds = time.perf_counter() - begun
    return {
        "losses": _rounded(hvd.allreduce(losses, name="losses")),
        "held_out": training.held_out(),
        "bytes": [int(after - before) for before, after in pairwise(sent)],
        "seconds": round(seconds, 2),
        "interval_seconds": [round(after - before, 4) for before, after in pairwise(ended)],
    }


def _rounded(losses: torch.Tensor) -> list[float]:
    means = losses[: len(losses) // INTERVAL * INTERVAL].view(-1, INTERVAL).mean(1)
    return [float(f"{mean:.6g}") for mean in means.tolist()]


def _record(path: Path, task: Task, found: dict[str, Any]) -> None:
    kept = [run for run in runs.kept(path, add=True) if run["task"] != asdict(task)]
    runs.save(path, [*kept, {"task": asdict(task), "interval": INTERVAL, **found, **runs.begun()}])


if __name__ == "__main__":
    main()
