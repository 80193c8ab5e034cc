"""What the tests of the decoupled schedule train."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from tests.support.learning.training import Recipe, Together, compare, distributed, together

#: With several buckets for the models of these tests.
DECOUPLED = {"schedule": "decoupled", "bucket_bytes": 1000}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)
    )


def rows(rank: int, batch: int, size: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * batch + rank)
    return torch.randn(8, size, generator=generator)


def loss(model: nn.Module, rank: int, batch: int) -> torch.Tensor:
    return model(rows(rank, batch)).pow(2).mean()


sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def adam(parameters) -> torch.optim.Adam:
    """Vectors have a learning rate of their own, and no decay."""
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.dim() == 1], "lr": 0.02},
        {"params": [p for p in parameters if p.dim() != 1], "weight_decay": 0.01},
    ]
    return torch.optim.Adam(groups, 0.01)


NET = Recipe(net, sgd, loss)
#: As one process learns with this schedule, where who does not wait has parameters of before.
compare_late = partial(compare, late=True, **DECOUPLED)


def wrap(model: nn.Module, optimizer=None, **options):
    """A decoupled optimizer of several buckets, of SGD by default."""
    return distributed(model, optimizer or sgd(model.parameters()), **{**DECOUPLED, **options})


def start(make=net, make_optimizer=sgd, **options) -> Together:
    """A training of this rank with the decoupled schedule."""
    return together(Recipe(make, make_optimizer, loss), **{**DECOUPLED, **options})


def all_awaited(optimizer) -> bool:
    """Whether every parameter is under way."""
    return len(optimizer.awaited) == sum(map(len, optimizer.buckets)) > 0


def copied(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]
