"""Ranks whose float32 travel coded: over TCP, for ranks that share memory code nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import aiacc.torch as hvd
from tests.support.ranks import run_ranks


def run_over_tcp(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """`run_ranks` with the engine that codes on one host."""
    return run_ranks(size, function, *args, env={"AIACC_ENGINE": "tcp"})


def values_of(rank: int, count: int = 5000) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(count, generator=torch.Generator().manual_seed(rank))


def check_same(tensor: torch.Tensor) -> None:
    """Assert that all ranks have the same bits."""
    everyones = hvd.allgather(tensor.reshape(1, -1))
    assert torch.equal(everyones, everyones[:1].expand_as(everyones))


def coding_optimizer(
    model: nn.Module, compression: Any, lr: float = 0.0, **options: Any
) -> torch.optim.Optimizer:
    """Of what ``model`` trains; by default it sums, and leaves parameters as they are."""
    return hvd.DistributedOptimizer(
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr),
        [(name, p) for name, p in model.named_parameters() if p.requires_grad],
        compression=compression,
        **{"op": hvd.Sum, **options},
    )
