"""K-FAC of several ranks that divide little, load states in mid-step, or start anew."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.kfac.costs import Polynomial
from aiacc.kfac.stage import StageCosts
from aiacc.planning.cost import Affine
from tests.parallel.kfac.kfac_training import loss_of, net, settings
from tests.support.ranks import run_ranks
from tests.support.training import flat


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


def _load_in_the_middle_of_a_step(kind):
    torch.set_num_threads(1)
    hvd.init()
    found = []
    for passes in (0, 1, 2):
        model = net()
        optimizer, kfac = _training(model, distribution=kind)
        _steps(model, optimizer, kfac, loss_of, range(6))
        kfac.consolidate_state_dict()
        state, parameters = kfac.state_dict(), copy.deepcopy(model.state_dict())
        if passes:
            # Rank 0 alone gets as far as the backward pass of a batch that is no good.
            loss = 1000 * loss_of(model, hvd.rank(), 99)
            if passes == 2 or hvd.rank() == 0:
                kfac_only = [layer.weight for layer in kfac._layers]
                torch.autograd.grad(loss, kfac_only)
            model.load_state_dict(parameters)
            kfac.load_state_dict(state)
        _steps(model, optimizer, kfac, loss_of, range(6, 9))
        found.append(flat(model))
        kfac.detach()
    hvd.shutdown()
    for one in found[1:]:
        torch.testing.assert_close(one, found[0])


@pytest.mark.parametrize("kind", ["replicate", "spd"])
def test_what_was_on_its_way_when_a_state_was_loaded_does_not_count(kind):
    run_ranks(2, _load_in_the_middle_of_a_step, kind)


def _start_anew(kind, load):
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    optimizer, kfac = _training(model, distribution=kind, inverse_every=3, costs=None)
    quick, slow = (Polynomial(seconds, 0.0, 0.0) for seconds in (1e-9, 1.0))
    # Everybody inverts everything in one of the jobs, and owners do in the other.
    for inversion in (slow, quick):
        kfac._costs = StageCosts(inversion, Affine(1e-3, 1e-9), gathered=True)
        steps = range(4) if inversion is slow else range(4, 9)
        _steps(model, optimizer, kfac, loss_of, steps)
        if inversion is slow:
            kfac.consolidate_state_dict()
            state = copy.deepcopy(kfac.state_dict())
            if load:
                kfac.load_state_dict(state)
            hvd.shutdown()
            hvd.init()
            if load:
                assert kfac.state_dict()["factors"].keys() == state["factors"].keys()
    everyones = hvd.allgather(flat(model).reshape(1, -1))
    assert torch.equal(everyones[0], everyones[1])
    hvd.shutdown()


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("kind", ["spd", "kaisa:0.5"])
def test_ranks_stay_alike_in_a_job_that_starts_anew(kind, load):
    run_ranks(2, _start_anew, kind, load)
