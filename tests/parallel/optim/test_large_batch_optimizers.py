"""Optimizers of aiacc.optim on two ranks: as one process with all data, in every schedule."""

import pytest
import torch

import aiacc.torch as hvd
from aiacc.optim import LAMB, LARS, AdamSGD, interpolation, linear_decay
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    Recipe,
    check_same_everywhere,
    compare,
    squares,
    together,
    train,
)

STEPS = 6
DECOUPLED = {"schedule": "decoupled"}


def _model():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    )


def _lars(parameters):
    return LARS(parameters, lr=2.0, weight_decay=0.01, nesterov=True)


def _lamb(parameters):
    names = [name for name, _ in _model().named_parameters()]
    return LAMB([*zip(names, parameters, strict=True)], lr=0.02, exclude=("*.bias", "1.*"))


def _hybrid(parameters):
    optimizer = AdamSGD(parameters, lr=0.02, sgd_lr=0.2, weight_decay=0.01)
    optimizer.follow(interpolation(1, 4))
    return optimizer


def _steps(training):
    scheduler = linear_decay(training.optimizer, STEPS, warm_up=2, first=0.5)
    for batch in range(STEPS):
        train(training, [batch])
        scheduler.step()


_SCHEDULES = [{}, {"plan": "optimal"}, {"gradient_as_bucket_view": True}, DECOUPLED]


@on_ranks(2, each={"make": [_lars, _lamb, _hybrid], "options": _SCHEDULES})
def test_as_one_process_with_all_the_data(make, options):
    recipe = Recipe(_model, make, squares(4, 6, dtype=torch.float32))
    if options is DECOUPLED and make is not _hybrid:
        with pytest.raises(ValueError, match=r"schedule='decoupled' with LA(RS|MB) .*a norm or"):
            together(recipe, **options)
    else:
        compare(_steps, recipe, exactly=False, **options)


@on_ranks(2)
def test_all_of_a_group_that_is_added_is_reduced():
    """Also of what LARS excludes."""
    for options in ({}, {"op": hvd.Adasum}):
        first, last = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)
        hvd.broadcast_parameters([*first.parameters(), *last.parameters()], root_rank=0)
        optimizer = hvd.DistributedOptimizer(LARS(first.parameters(), lr=2.0), **options)
        optimizer.add_param_group({"params": list(last.parameters())})
        for step in range(3):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(hvd.size() * step + hvd.rank())
            last(first(torch.randn(8, 6, generator=generator))).square().mean().backward()
            optimizer.step()
        check_same_everywhere(torch.nn.ModuleList([first, last]))
