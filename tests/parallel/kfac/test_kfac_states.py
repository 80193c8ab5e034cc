"""K-FAC of several ranks: states, lost inverses and new starts, and when factors travel."""

import copy
import json
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.kfac import inverses
from aiacc.kfac.costs import Polynomial
from aiacc.kfac.stage import StageCosts
from aiacc.planning.cost import Affine
from aiacc.torch.kfac import buckets
from tests.parallel.kfac.kfac_training import (
    EVERY_STEP,
    loss_of,
    net,
    take_steps,
    training,
)
from tests.support.jobs import in_job, on_ranks
from tests.support.learning.training import check_same_everywhere, flat, squares
from tests.support.ranks import run_ranks


class _TwoDtypes(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(5, 3).double()

    def forward(self, inputs):
        return self.second(self.first(inputs).tanh().double())


@on_ranks(2)
def test_gradients_of_two_dtypes_travel_together_and_a_rank_may_own_nothing():
    found, loss = [], squares(8, 4, dtype=torch.float32)
    for kind in ("replicate", "kaisa:0.5"):
        model = _TwoDtypes()
        take_steps(model, *training(model, **EVERY_STEP, distribution=kind), loss, range(4))
        found.append(model)
    for ours, wanted in zip(found[1].parameters(), found[0].parameters(), strict=True):
        torch.testing.assert_close(ours, wanted)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    both = training(model, **EVERY_STEP, distribution="dp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_steps(model, *both, loss, range(3))


@in_job
def _train_and_save(steps, state, kind):
    model = net()
    optimizer, kfac = training(model, **EVERY_STEP, distribution=kind)
    if state is not None:
        model.load_state_dict({name: torch.from_numpy(one) for name, one in state[0].items()})
        factors = {name: torch.from_numpy(one) for name, one in state[1]["factors"].items()}
        kfac.load_state_dict({**state[1], "factors": factors})

    def loss(model, rank, step):
        batches = range(rank, 4, hvd.size())  # four in a step, whatever ranks there are
        return sum(loss_of(model, batch, step) / len(batches) for batch in batches)

    take_steps(model, optimizer, kfac, loss, steps)
    if steps and kind == "mpd":
        with pytest.raises(ValueError, match="consolidate_state_dict"):
            kfac.state_dict()
    kfac.consolidate_state_dict()
    found = kfac.state_dict()
    factors = {name: one.numpy() for name, one in found["factors"].items()}
    parameters = {name: one.detach().numpy() for name, one in model.state_dict().items()}
    return parameters, {**found, "factors": factors}


def test_a_checkpoint_goes_on_at_another_number_of_ranks():
    saved = run_ranks(2, _train_and_save, [0, 1], None, "mpd")
    assert saved[0][1]["factors"].keys() == saved[1][1]["factors"].keys()
    assert len(saved[0][1]["factors"]) == 8
    for ranks, kind in ((1, "spd"), (3, "kaisa:0.3333")):
        for model, state in run_ranks(ranks, _train_and_save, [], saved[1], kind):
            assert state["step"] == 2
            for name, one in saved[0][0].items():
                np.testing.assert_array_equal(model[name], one)
            assert state["factors"].keys() == saved[0][1]["factors"].keys()
    straight = run_ranks(2, _train_and_save, [0, 1, 2], None, "mpd")[0]
    resumed = run_ranks(2, _train_and_save, [2], saved[0], "spd")[0]
    for ours, wanted in (
        (resumed[0], straight[0]),
        (resumed[1]["factors"], straight[1]["factors"]),
    ):
        for name, one in wanted.items():
            np.testing.assert_allclose(ours[name], one, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("solve", ["cholesky", "eigh"])
@on_ranks(2)
def test_a_factor_without_an_inverse_keeps_the_last_one_on_every_rank(solve):
    """A of `conv` has none in the last step, on its owner; of dimension 10 is no other factor."""
    model = net()
    optimizer, kfac = training(model, **EVERY_STEP, distribution="mpd", solve=solve)
    take_steps(model, optimizer, kfac, loss_of, range(2))
    name = "eigh" if solve == "eigh" else "cholesky_ex"
    real = getattr(torch.linalg, name)

    def failing(matrices):
        if matrices.shape[-1] != 10:
            return real(matrices)
        return real(torch.full_like(matrices, float("inf")))

    kept = kfac._layers[0].a.inverse
    setattr(inverses.torch.linalg, name, failing)
    take_steps(model, optimizer, kfac, loss_of, range(2, 3))
    setattr(inverses.torch.linalg, name, real)
    torch.testing.assert_close(kfac._layers[0].a.inverse, kept, rtol=0, atol=0)
    failures = hvd.allreduce(torch.tensor([float(kfac.report().failures)]), op=hvd.Sum)
    assert failures.item() == 1
    assert all(one.isfinite().all() for one in model.parameters())


@pytest.mark.parametrize("kind", ["replicate", "spd"])
@on_ranks(2)
def test_what_was_on_its_way_when_a_state_was_loaded_does_not_count(kind):
    found = []
    for passes in (0, 1, 2):
        model = net()
        optimizer, kfac = training(model, **EVERY_STEP, distribution=kind)
        take_steps(model, optimizer, kfac, loss_of, range(6))
        kfac.consolidate_state_dict()
        state, parameters = kfac.state_dict(), copy.deepcopy(model.state_dict())
        # Rank 0 alone, or both, get as far as the backward pass of a batch that is no good.
        if passes == 2 or (passes == 1 and hvd.rank() == 0):
            weights = [module.weight for module in model.children() if module is not model.norm]
            torch.autograd.grad(1000 * loss_of(model, hvd.rank(), 99), weights)
        if passes:
            model.load_state_dict(parameters)
            kfac.load_state_dict(state)
        take_steps(model, optimizer, kfac, loss_of, range(6, 9))
        found.append(flat(model))
        kfac.detach()
    for one in found[1:]:
        torch.testing.assert_close(one, found[0])


@pytest.mark.parametrize("load", [False, True])
@pytest.mark.parametrize("kind", ["spd", "kaisa:0.5"])
@on_ranks(2)
def test_ranks_stay_alike_in_a_job_that_starts_anew(kind, load):
    model = net()
    optimizer, kfac = training(model, **EVERY_STEP | {"inverse_every": 3}, distribution=kind)
    quick, slow = (Polynomial(seconds, 0.0, 0.0) for seconds in (1e-9, 1.0))
    # Everybody inverts everything in one of the jobs, and owners do in the other.
    for inversion in (slow, quick):
        kfac._costs = StageCosts(inversion, Affine(1e-3, 1e-9), gathered=True)
        steps = range(4) if inversion is slow else range(4, 9)
        take_steps(model, optimizer, kfac, loss_of, steps)
        if inversion is slow:
            kfac.consolidate_state_dict()
            state = copy.deepcopy(kfac.state_dict())
            if load:
                kfac.load_state_dict(state)
            hvd.shutdown()
            hvd.init()
            if load:
                assert kfac.state_dict()["factors"].keys() == state["factors"].keys()
    check_same_everywhere(model)


# --- when factors travel


LAYERS, STEPS = 3, 3


class _Wait(torch.autograd.Function):
    """Does nothing, but waits in its backward pass."""

    @staticmethod
    def forward(ctx, tensor, wait):
        ctx.wait = wait
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.wait()
        return gradient, None


MEASURED = {**EVERY_STEP, "costs": None}


@in_job
def _train():
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))
    options = {**MEASURED, "fusion": "threshold", "distribution": "replicate"}
    optimizer, kfac = training(layers, **options)
    started, start, ends = [], buckets.allreduce_async_, []

    def recorded(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    buckets.allreduce_async_ = recorded

    def arrived():
        """Wait in the backward pass until the factors of the forward pass are reduced."""
        if not ends:
            return  # in the first step nothing leaves before the ranks have agreed
        while not hvd.poll(started[-1]):
            time.sleep(1e-4)

    for _ in range(STEPS):
        optimizer.zero_grad()
        found = torch.randn(4, 8)
        for layer in layers:
            found = layer(found)
        _Wait.apply(found, arrived).pow(2).sum().backward()
        ends.append(time.monotonic() * 1e6)
        kfac.step()
        optimizer.step()
    return ends


def test_factors_of_the_forward_pass_are_reduced_during_the_backward_pass(tmp_path):
    path = tmp_path / "t.json"
    ends = run_ranks(2, _train, env={"AIACC_TIMELINE": str(path)})[0]
    events = json.loads(path.read_text())
    ours = [one for one in events if ".factors." in one.get("name", "")]
    reduced = sorted(one["ts"] + one["dur"] for one in ours if one["cat"] == "ALLREDUCE")
    assert reduced[0] > ends[0]  # where both buckets may be one unit
    later = reduced[-2 * (STEPS - 1) :]
    assert later[0] > reduced[0]
    for step in range(1, STEPS):
        a, g = later[2 * step - 2 : 2 * step]
        assert ends[step - 1] < a < ends[step]
        assert a < g


def _train_by(fusion, kind):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS))).double()
    optimizer, kfac = training(model, **MEASURED, distribution=kind, fusion=fusion)
    take_steps(model, optimizer, kfac, squares(4, 8), range(8))
    kfac.detach()
    return model, kfac.report().together, optimizer


@on_ranks(2)
def test_a_plan_of_recorded_steps_fuses_factors_and_gradients_and_changes_no_result():
    for kind in ("replicate", "mpd", "spd"):
        model, together, optimizer = _train_by("optimal", kind)
        assert sorted(name for names in together for name in names) == sorted(
            f"{layer} {side}" for layer in range(LAYERS) for side in "AG"
        )
        assert hvd.allgather(torch.tensor([len(together)])).unique().numel() == 1
        assert not optimizer.unplanned  # gradients follow the same plan
        for fusion in ("threshold", "bulk"):
            other, _, plain = _train_by(fusion, kind)
            assert len(plain.unplanned) == 2 * LAYERS
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(one, two)
