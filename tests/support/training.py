"""What a job should have learned: the same model trained by one process, and the comparison."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import aiacc.torch as hvd


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters in one vector, of the widest of their types."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def train_alone(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[nn.Module, int, int], torch.Tensor],
    steps: int,
    *,
    passes: int = 1,
    op: int = hvd.Average,
    update: Callable[[nn.Module], object] | None = None,
) -> nn.Module:
    """Train ``model`` on the data of all ranks, without any communication.

    Args:
        model: Plain model.
        optimizer: Plain optimizer of its parameters.
        loss: ``loss(model, rank, batch)`` of one rank's batch; batches are numbered from 0.
        steps: Optimizer steps.
        passes: Batches per rank and step.
        op: Average or Sum over the ranks.
        update: Changes the gradients before every step.

    Returns:
        ``model``.
    """
    for step in range(steps):
        optimizer.zero_grad()
        for batch in range(step * passes, (step + 1) * passes):
            for rank in range(hvd.size()):
                share = loss(model, rank, batch)
                (share / hvd.size() if op == hvd.Average else share).backward()
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if update is not None:
            update(model)
        optimizer.step()
    return model


def check_parameters(model: nn.Module, expected: nn.Module, **tolerance: float) -> None:
    """Assert that ``model`` is close to ``expected``, and the same to the last bit on all ranks."""
    torch.testing.assert_close(flat(model), flat(expected), **tolerance)
    everyones = hvd.allgather(flat(model).reshape(1, -1))
    assert torch.equal(everyones, everyones[:1].expand_as(everyones))
