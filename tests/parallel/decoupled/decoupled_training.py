"""Training by both schedules, for the tests of the decoupled one."""

from __future__ import annotations

import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.torch.decoupled.part import Part

#: Several buckets for the models below.
BUCKET_BYTES = 4000


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)
    )


def batch(step: int, rank: int, size: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, size, generator=generator)


def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    return model(batch(step, rank)).pow(2).mean()


def wrap(module, optimizer, schedule="decoupled", **arguments):
    if schedule == "decoupled":
        arguments = {"model": module, "bucket_bytes": BUCKET_BYTES, **arguments}
    return hvd.DistributedOptimizer(
        optimizer, module.named_parameters(), schedule=schedule, **arguments
    )


def begin():
    """Start the job; a model and its optimizer, the same on every rank."""
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    return model, wrap(model, torch.optim.SGD(model.parameters(), 0.1))


def train(model, optimizer, steps, before_step=lambda optimizer: None, loss=loss):
    for step in steps:
        optimizer.zero_grad()
        loss(model, step, hvd.rank()).backward()
        before_step(optimizer)
        optimizer.step()


def check_equal(found: nn.Module, expected: nn.Module) -> None:
    """To the last bit with two ranks, whose sums have one order."""
    for (name, one), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        if hvd.size() == 2:
            assert torch.equal(one, other), name
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")
    everyones = hvd.allgather(torch.cat([p.detach().reshape(1, -1) for p in found.parameters()], 1))
    assert torch.equal(everyones, everyones[:1].expand_as(everyones))


def gather_late() -> None:
    """Let all-gathers start when they are waited for: who does not wait has old parameters."""
    start, finish = Part.gather, Part.finish_gather

    def gather(part: Part) -> None:
        part._gather_handle = -1

    def finish_gather(part: Part) -> None:
        if part._gather_handle == -1:
            start(part)
        finish(part)

    Part.gather, Part.finish_gather = gather, finish_gather
