"""KFAC of models that change between steps, and in contexts that they are used in."""

from __future__ import annotations

import torch
from torch import nn

import aiacc.torch as hvd


def _training(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return model, sgd, hvd.KFAC(model, sgd, **{"factor_every": 1, "inverse_every": 1, **options})


def _pass(model, sgd, seed=0):
    torch.manual_seed(seed)
    sgd.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()


def test_a_step_in_a_block_of_autocast_is_computed_in_full():
    found = []
    for within in (False, True):
        model, sgd, kfac = _training()
        _pass(model, sgd)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=within):
            kfac.step()
        found.append(model[0].weight.grad)
    assert torch.equal(*found)
