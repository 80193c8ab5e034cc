"""KFAC of models that change between steps, and in contexts that they are used in."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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


@pytest.mark.parametrize("fisher", ["empirical", "mc"])
@pytest.mark.parametrize("solve", ["cholesky", "eigh"])
def test_a_layer_that_is_frozen_for_some_steps_is_left_alone_and_taken_up_again(fisher, solve):
    model, sgd, kfac = _training(fisher=fisher, solve=solve, kl_clip=None)

    def step(number):
        torch.manual_seed(number)
        sgd.zero_grad(set_to_none=number % 2 == 0)
        outputs = model(torch.randn(8, 4))
        if fisher == "mc":
            kfac.sample(outputs, nn.MSELoss())
        outputs.square().mean().backward()
        before = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
        kfac.step()
        return before

    step(0)
    kept = kfac.state_dict()["factors"]
    model[0].requires_grad_(False)
    for number in (1, 2):
        before = step(number)
        assert not torch.equal(model[2].weight.grad, before[2])
    assert kfac.report().left_out["0"] == "the weight of Linear is frozen"
    factors = kfac.state_dict()["factors"]
    assert {name: torch.equal(one, kept[name]) for name, one in factors.items()} == {
        "0 A": True,
        "0 G": True,
        "2 A": False,
        "2 G": False,
    }
    model[0].requires_grad_(True)
    before = step(3)
    assert not torch.equal(model[0].weight.grad, before[0])
    assert "0" not in kfac.report().left_out


@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_whose_bias_is_frozen_or_trained_later_is_left_to_the_optimizer(frozen):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].bias.requires_grad_(frozen)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    kfac = hvd.KFAC(model, sgd, factor_every=1, inverse_every=1, kl_clip=None)
    _pass(model, sgd)
    kfac.step()
    model[0].bias.requires_grad_(not frozen)
    _pass(model, sgd)
    before = model[0].weight.grad.clone()
    kfac.step()
    assert torch.equal(model[0].weight.grad, before)
    assert "its bias is" in kfac.report().left_out["0"]


def test_layers_that_the_distributed_optimizer_does_not_have_are_left_to_others():
    hvd.init()
    try:
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Linear(3, 2))
        some = [*model[0].parameters(), model[2].weight]
        named = [
            (name, one) for name, one in model.named_parameters() if any(one is o for o in some)
        ]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(some, 0.1), named)
        kfac = hvd.KFAC(model, optimizer, kl_clip=None)
        _pass(model, optimizer)
        before = [one.grad.clone() for one in model.parameters()]
        kfac.step()
        changed = [
            not torch.equal(one.grad, b) for one, b in zip(model.parameters(), before, strict=True)
        ]
        assert changed == [True, True, False, False, False, False]
        reason = "the DistributedOptimizer does not have its parameters"
        assert {name: kfac.report().left_out[name] for name in "23"} == {"2": reason, "3": reason}
    finally:
        hvd.shutdown()


def test_a_complex_layer_is_left_to_the_optimizer():
    model = nn.Sequential(nn.Linear(4, 5, dtype=torch.complex64), nn.Linear(5, 3))
    kfac = hvd.KFAC(model, torch.optim.SGD(model.parameters(), 0.1))
    assert kfac.report().left_out == {"0": "the weight of Linear is complex"}


def test_a_model_with_hooks_can_be_saved_and_copied_as_a_whole():
    model, sgd, kfac = _training()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    inputs = torch.randn(3, 4)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
        other(inputs).sum().backward()
        assert torch.equal(other(inputs), model(inputs))
    _pass(model, sgd)
    kfac.step()
    assert model[0].weight.grad is not None


def test_passes_of_a_step_may_change_between_two():
    hvd.init()
    try:
        factors = []
        for passes in (1, 2):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
            sgd = torch.optim.SGD(model.parameters(), 0.1)
            optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
            kfac = hvd.KFAC(model, optimizer, factor_every=1, decay=0.0)
            _pass(model, optimizer)
            kfac.step()
            optimizer.zero_grad()
            optimizer.set_backward_passes_per_step(passes)
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
            for part in inputs.chunk(passes):
                (model(part).square().mean() / passes).backward()
            kfac.step()
            factors.append(kfac.state_dict()["factors"])
        torch.testing.assert_close(factors[1], factors[0])
    finally:
        hvd.shutdown()


class _Checkpointed(nn.Module):
    """Computes its layers once more in the backward pass."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, inputs):
        return checkpoint(self.layers, inputs, use_reentrant=False)


@pytest.mark.parametrize("model", [_Checkpointed, lambda: _Checkpointed().layers])
def test_a_pass_whose_gradients_are_dropped_before_the_first_step_counts_nothing(model):
    states = []
    for passes in (0, 1, 2):
        torch.manual_seed(0)
        net = model()
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        kfac = hvd.KFAC(net, sgd, factor_every=1, inverse_every=1)
        for number in range(passes):
            _pass(net, sgd, seed=9 + number)
        for number in range(3):
            _pass(net, sgd, seed=number)
            kfac.step()
            sgd.step()
        states.append(kfac.state_dict()["factors"])
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(one, states[0][name]) for name, one in state.items())


def _of_the_input(model, kfac, loss):
    inputs = torch.randn(8, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    ((slope.sum(1) - 1).square().mean() + model(torch.randn(8, 4)).square().mean()).backward()


def _sampled_twice(model, kfac, loss):
    first = model(torch.randn(8, 4))
    kfac.sample(first, nn.MSELoss())
    second = model(torch.randn(8, 4))
    kfac.sample(second, nn.MSELoss())
    (first.square().mean() + second.square().mean()).backward()


def _sharpness_aware(model, kfac, loss):
    loss().backward()
    model.zero_grad()
    loss().backward()


@pytest.mark.parametrize(
    ("step", "fisher", "uses"),
    [
        (_of_the_input, "empirical", (2, 3)),
        (_sampled_twice, "mc", (2, 2)),
        (_sharpness_aware, "empirical", (2, 2)),
    ],
)
def test_steps_of_several_passes_count_them_in_every_step(step, fisher, uses, recwarn):
    model, sgd, kfac = _training(fisher=fisher)
    for _ in range(4):
        sgd.zero_grad()
        step(model, kfac, lambda: model(torch.randn(8, 4)).square().mean())
        kfac.step()
    layer = kfac._layers[0]
    assert (layer.a.uses_per_pass, layer.g.uses_per_pass) == uses
    assert not recwarn.list


def test_passes_that_are_added_up_before_the_first_step_all_count():
    states = []
    for halves in (False, True):
        model, sgd, kfac = _training()
        _pass(model, sgd)
        torch.manual_seed(0)
        if halves:
            model(torch.randn(8, 4)).square().mean().backward()
        kfac.step()
        states.append(kfac.state_dict()["factors"])
    for name, one in states[1].items():
        times = 2 if name.endswith("G") else 1  # as if the layers were used twice
        torch.testing.assert_close(one, times * states[0][name])
