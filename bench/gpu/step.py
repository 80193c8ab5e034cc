"""A training step of ResNet-50's shapes on one GPU whose backward pass costs next to nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from bench.collectives.training import FreeModel
from bench.gpu import ranks, works
from bench.record import Run
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
    found = ranks.run("bench.gpu.step:steps", int(cell), rounds, {})
    samples = {name: [values] for name, values in found.items()}
    title = "one rank" if cell == "1" else "two ranks"
    return {"title": title, "unit": "s", "samples": samples, "machine": works.here()}


def steps(task: dict[str, Any]) -> dict[str, Spans]:
    """The steps of one rank."""
    ranks.begin()
    distributed.init_process_group("nccl", rank=hvd.rank(), world_size=hvd.size())
    views: dict[str, Any] = {"gradient_as_bucket_view": True}
    wraps: tuple[Callable[[FreeModel], tuple[torch.nn.Module, Any]], ...] = (
        lambda model: (model, _sgd(model)),
        _ddp,
        functools.partial(_ddp, **views),
        _aiacc,
        functools.partial(_aiacc, **views),
    )
    contenders = {name: _step(wrap) for name, wrap in zip(_NAMES, wraps, strict=True)}
    found = ranks.in_turn(contenders, task["rounds"])
    distributed.destroy_process_group()
    hvd.shutdown()
    return found


def _ddp(model: FreeModel, **options: Any) -> tuple[torch.nn.Module, Any]:
    return DistributedDataParallel(model, **options), _sgd(model)


def _aiacc(model: FreeModel, **options: Any) -> tuple[torch.nn.Module, Any]:
    return model, hvd.DistributedOptimizer(_sgd(model), **options)


def _step(wrap: Callable[[FreeModel], tuple[torch.nn.Module, Any]]) -> Callable[[], None]:
    names, tensors = ranks.gradients()
    given: Any = SimpleNamespace(names=names, tensors=tensors)
    module, optimizer = wrap(FreeModel(given).cuda())
    value = torch.zeros((), device="cuda")

    def run() -> None:
        optimizer.zero_grad()
        module(value).backward()
        optimizer.step()

    return run


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def tables(runs: Sequence[Run]) -> str:
    """A line for each contender."""
    return contest(runs, {name: name for name in _NAMES}, _NAMES[1:3], _NAMES[3:])
