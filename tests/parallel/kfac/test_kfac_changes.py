"""K-FAC of several ranks that divide little, load states in mid-step, or start anew."""

from __future__ import annotations

import warnings

import torch
from torch import nn

import aiacc.torch as hvd
from tests.parallel.kfac.kfac_training import settings
from tests.support.ranks import run_ranks


def _training(model, **options):
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    options = settings({"factor_every": 1, "inverse_every": 1, **options})
    return optimizer, hvd.KFAC(model, optimizer, **options)


def _steps(model, optimizer, kfac, loss, steps):
    for step in steps:
        optimizer.zero_grad()
        loss(model, hvd.rank(), step).backward()
        kfac.step()
        optimizer.step()


class _TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 3).double()

    def forward(self, inputs):
        return self.second(self.first(inputs).tanh().double())


def _loss(model, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return model(torch.randn(8, 4, generator=generator)).square().mean()


def _layers_of_two_dtypes():
    torch.set_num_threads(1)
    hvd.init()
    found = []
    for kind in ("replicate", "kaisa:0.5"):
        model = _TwoDtypes()
        optimizer, kfac = _training(model, distribution=kind)
        _steps(model, optimizer, kfac, _loss, range(4))
        found.append(model)
    for ours, wanted in zip(found[1].parameters(), found[0].parameters(), strict=True):
        torch.testing.assert_close(ours, wanted)
    hvd.shutdown()


def test_preconditioned_gradients_of_two_dtypes_travel_together():
    run_ranks(2, _layers_of_two_dtypes)


def _nothing_to_own():
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    optimizer, kfac = _training(model, distribution="dp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _steps(model, optimizer, kfac, _loss, range(3))
    hvd.shutdown()


def test_a_rank_that_owns_no_layer_is_not_told_that_it_builds_no_factor():
    run_ranks(2, _nothing_to_own)
