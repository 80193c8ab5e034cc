"""What agreeing on the tensors of a step costs: rounds, messages and bytes, counted.

* ``jobs``: ranks of this machine, by `aiacc.stats()` of every rank after every step;
* ``counted``: the program ``negotiation_bench``, which runs the negotiator of one rank of up to
  1,024, and folds what the others say by recursive doubling, with the frames that it travels in.
  All ranks are equally busy: with N of them a round has N log2 N messages;
* ``large``: the same with 6,200 tensors, and the time and memory that the rank needs.

Beside ``counted`` stands what ranks of Horovod exchange when its cache knows all tensors, in as
many rounds: one AND of bit vectors (`CacheCoordinator::sync`), a bit for each tensor and 3 more in
words of 8 bytes, by recursive doubling too, with our frames. Horovod has such a round in each of
its cycles, of a millisecond by default, whether anything waits or not.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from math import log2
from statistics import median
from typing import Any

from bench import job
from bench.native import MICRO, built
from bench.record import Run
from bench.shapes import Shape, resnet50
from bench.tables import amount, table

CELLS = ("jobs", "counted", "large")
_RANKS = (2, 3, 4, 5, 6, 7, 8)
_COUNTED = (2, 4, 8, 64, 256, 1024)
#: A round whenever so much waits; or one for each step.
_UNITS = (0, 1 << 20)
#: GPUs per host (0: host memory) and AIACC_CACHE_CAPACITY.
_LARGE = ((0, 4096), (0, 8192), (8, 8192))
#: Steps after the first one, in which the names travel.
_STEPS = 11
_FRAME_BYTES = 12
#: What the program prints of a step.
_FIELDS = ("rounds", "sent", "received", "largest", "seconds", "peak")

Model = list[tuple[str, Shape]]


def tensors() -> Model:
    """Names as `DistributedOptimizer` makes them, and shapes, in the order of the backward pass."""
    return [(f"allreduce.{name}", shape) for name, shape in reversed(resnet50())]


def _large_model() -> Model:
    return [
        (
            f"allreduce.model.layers.{i // 62}.block{i % 62 // 8}.mlp.linear{i % 8}.weight",
            (1024,) * 2,
        )
        for i in reversed(range(6200))
    ]


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Bytes of the later steps, or seconds with the large model; everything else beside them."""
    steps = 1 + (rounds or _STEPS)
    if cell == "jobs":
        return _jobs(steps)
    if cell == "counted":
        kinds = [(ranks, 0, 4096, unit) for ranks in _COUNTED for unit in _UNITS]
        found = [_simulated(tensors(), *kind, steps) for kind in kinds]
        title, unit = "161 gradients of ResNet-50", "B"
    else:
        found = [_simulated(_large_model(), 1024, *kind, 0, steps) for kind in _LARGE]
        title, unit = "one rank of 1,024, 6,200 tensors", "s"
    samples = {
        _name(one): [
            [_passed(step) if unit == "B" else step["seconds"] for step in one["steps"][1:]]
        ]
        for one in found
    }
    return {"title": title, "unit": unit, "samples": samples, "simulated": found}


def _name(one: dict[str, Any]) -> str:
    memory = f"{one['gpus']} GPUs per host" if one["gpus"] else "host memory"
    rounds = f"{one['steps'][-1]['rounds']} rounds"
    return f"{one['ranks']} ranks, {memory}, capacity {one['capacity']}, {rounds}"


def _passed(step: dict[str, Any]) -> int:
    return int(step["sent"] + step["received"])


def _simulated(
    model: Model, ranks: int, gpus: int, capacity: int, unit: int, steps: int
) -> dict[str, Any]:
    """What the program prints of each step, the first of which may take a minute."""
    done = subprocess.run(
        [built(MICRO / "negotiation_bench"), *map(str, (ranks, gpus, capacity, unit, steps))],
        input="".join(" ".join([name, *map(str, shape)]) + "\n" for name, shape in model),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [map(json.loads, line.split()) for line in done.stdout.splitlines()]
    found = [dict(zip(_FIELDS, line, strict=True)) for line in lines]
    return {"ranks": ranks, "gpus": gpus, "capacity": capacity, "steps": found}


def _jobs(steps: int) -> dict[str, Any]:
    samples, rounds = {}, {}
    for ranks in _RANKS:
        seen = job.run(
            "bench.negotiation:be_a_rank", {"steps": steps}, ranks=ranks,
            variables={"AIACC_ENGINE": "tcp"},
        )  # fmt: skip
        samples[f"{ranks} ranks"] = [rank["bytes"] for rank in seen]
        rounds[f"{ranks} ranks"] = seen[0]["rounds"]
    return {"title": "sent by a rank", "unit": "B", "samples": samples, "rounds": rounds}


def be_a_rank(task: dict[str, Any]) -> dict[str, list[int]]:
    """Reduce the gradients; what each step but the first added to the counters."""
    import numpy as np

    import aiacc
    import aiacc.array as hvd

    hvd.init()
    gradients = [(name, np.ones(shape, np.float32)) for name, shape in tensors()]
    found: dict[str, list[int]] = {"rounds": [], "bytes": []}
    for step in range(task["steps"]):
        before = aiacc.stats()
        for handle in [hvd.allreduce_async_(array, name=name) for name, array in gradients]:
            hvd.synchronize(handle)
        after = aiacc.stats()
        if step > 0:
            found["rounds"].append(int(after["rounds"] - before["rounds"]))
            found["bytes"].append(int(after["control_bytes"] - before["control_bytes"]))
    hvd.barrier()
    hvd.shutdown()
    return found


def tables(runs: Sequence[Run]) -> str:
    """A table for each cell."""
    made = {"jobs": _jobs_table, "counted": _counted_table, "large": _large_table}
    return "\n\n".join(made[run["cell"]](run) for run in runs)


def _jobs_table(run: Run) -> str:
    lines = []
    for name, of_ranks in run["samples"].items():
        sent, rounds = [value for rank in of_ranks for value in rank], run["rounds"][name]
        per_round = amount(sum(sent) / (len(of_ranks) * sum(rounds)), "B")
        most = f"{median(rounds):g} ({min(rounds)} to {max(rounds)})"
        lines.append([name, most, f"{median(sent):,.0f} ({max(sent):,})", per_round])
    return table(["", "rounds per step", "bytes of a rank per step (most)", "per round"], lines)


def _counted_table(run: Run) -> str:
    bits = 8 * -(-(len(tensors()) + 3) // 64) + _FRAME_BYTES
    lines = []
    for one in run["simulated"]:
        ranks, step = one["ranks"], one["steps"][-1]
        messages = round(step["rounds"] * log2(ranks))
        sizes = (ranks * step["sent"], _passed(step), ranks * messages * bits, 2 * messages * bits)
        counts = (f"{ranks:,}", str(step["rounds"]), f"{ranks * messages:,}")
        lines.append([*counts, *(amount(size, "B") for size in sizes)])
    head = ["ranks", "rounds per step", "messages", "bytes", "of one rank"]
    last = run["simulated"][-1]
    return (
        f"{table([*head, 'bytes by bits alone', 'of one rank'], lines)}\n\n"
        f"The first step of a job, in which the names travel once, passes "
        f"{amount(_passed(last['steps'][0]), 'B')} through each of {last['ranks']:,} ranks."
    )


def _large_table(run: Run) -> str:
    lines = []
    for one in run["simulated"]:
        memory = f"{one['gpus']} GPUs per host" if one["gpus"] else "host"
        for at in (0, 1, len(one["steps"]) - 1):
            step = one["steps"][at]
            sizes = (amount(size, "B") for size in (_passed(step), step["largest"], step["peak"]))
            spent = amount(step["seconds"], "s")
            lines.append([memory, str(one["capacity"]), str(at + 1), *sizes, spent])
    head = ["memory", "AIACC_CACHE_CAPACITY", "step", "bytes sent and received", "largest message"]
    text = table([*head, "peak of memory", "time"], lines)
    return f"One rank of 1,024, 6,200 tensors, all of them in one round per step:\n\n{text}"
