"""A training step of ResNet-50's shapes on one GPU whose backward pass costs next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import distributed

import aiacc.torch as hvd
from bench.collectives import training
from bench.collectives.tensors import Tensors
from bench.gpu import ranks
from bench.record import Run
from bench.shapes import resnet50
from bench.tables import contest
from bench.turns import Spans

#: Ranks.
CELLS = ("1", "2")
_NAMES = (
    "no communication",
    *("DDP", "DDP, gradients as views"),
    *("aiacc", "aiacc, gradients as views"),
)


def measure(cell: str, rounds: int | None) -> dict[str, Any]:
    """Seconds of a step of each contender, in one job."""
    samples = ranks.run("bench.gpu.step:steps", int(cell), rounds, {})
    return ranks.kept("one rank" if cell == "1" else "two ranks", samples)


def steps(task: dict[str, Any]) -> dict[str, Spans]:
    """The steps of one rank."""
    ranks.begin()
    distributed.init_process_group("nccl", rank=hvd.rank(), world_size=hvd.size())
    data = Tensors(resnet50(), hvd.rank(), hvd.size(), device="cuda")
    views = {"gradient_as_bucket_view": True}
    contenders = [
        training.alone(data, _NAMES[0], hvd.rank()),
        training.by_ddp(data, _NAMES[1], {}),
        training.by_ddp(data, _NAMES[2], views),
        training.distributed(hvd, data, _NAMES[3]),
        training.distributed(hvd, data, _NAMES[4], **views),
    ]
    found = ranks.in_turn(contenders, task["rounds"])
    distributed.destroy_process_group()
    hvd.shutdown()
    return found


def tables(runs: Sequence[Run]) -> str:
    """A line for each contender."""
    return contest(runs, {name: name for name in _NAMES}, _NAMES[1:3], _NAMES[3:])
