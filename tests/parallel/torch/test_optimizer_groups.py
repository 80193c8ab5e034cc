"""Groups of gradients, which are reduced together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from tests.support.ranks import run_ranks


def _net():
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(3, 3).double() for _ in range(4))


def _loss(model, rank, step):
    """Every rank leaves out another layer."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    batch = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    used = [layer for number, layer in enumerate(model) if number != (rank + step) % 4]
    return sum(layer(batch).pow(2).mean() for layer in used)


def _alone(ranks, steps):
    model = _net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        optimizer.zero_grad()
        sum(_loss(model, rank, step) / len(ranks) for rank in ranks).backward()
        optimizer.step()
    return model


def _check(model, expected):
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def _train(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        _loss(model, hvd.rank(), step).backward()
        optimizer.step()


def _groups():
    torch.set_num_threads(1)
    hvd.init()
    expected = _alone(range(hvd.size()), 4)
    for choose in (
        lambda model: 1,
        lambda model: 3,
        lambda model: 100,
        lambda model: [list(model[0].parameters()), [model[3].bias, model[1].weight]],
    ):
        model = _net()
        named = list(model.named_parameters())
        parameters = [parameter for _, parameter in named]
        if hvd.rank() == 1:  # the first rank's order counts
            parameters.reverse()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(parameters, 0.1), named, groups=choose(model)
        )
        _train(model, optimizer, 4)
        _check(model, expected)
    hvd.shutdown()


@pytest.mark.parametrize("size", [2, 3])
def test_groups(size):
    run_ranks(size, _groups)


def _always_frozen():
    hvd.init()
    weight = nn.Parameter(torch.ones(2))
    common = nn.Parameter(torch.ones(2))
    named = [("common", common), (f"of_rank_{min(hvd.rank(), 1)}", weight)]
    weight.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([common, weight], 0.1), named, groups=1)
    common.sum().backward()
    optimizer.step()  # a frozen parameter is in no group
    torch.testing.assert_close(common.detach(), torch.full((2,), 0.9))
    hvd.shutdown()


def test_parameters_that_were_always_frozen_are_in_no_group():
    run_ranks(2, _always_frozen)
