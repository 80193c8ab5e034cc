"""KFAC in one process: steps are those of dense matrices, and what it refuses."""

import copy

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.kfac.precondition import gradient_matrix, write_gradient
from aiacc.torch.kfac.solvers import EIGH
from tests.unit.torch.kfac_steps import (
    BATCH,
    backward,
    copied,
    factors_by_hand,
    gradients_of,
    layered,
    solved,
    training,
)


def _check_step(model, kfac, seen, **how):
    """Let K-FAC take a step whose last pass has `seen` that."""
    before = gradients_of(model)
    kfac.step()
    wanted = {
        name: solved(*factors_by_hand(seen[name]), gradient, 0.1, **how)
        for name, gradient in before.items()
    }
    torch.testing.assert_close(gradients_of(model), wanted)


def test_the_length_of_a_step_is_bounded():
    rate = {"lr": lambda step: 0.5 if step == 0 else 0.1}
    model, _, kfac = training(kl_clip=1e-6, split="plain", **rate)
    seen, before = backward(model), gradients_of(model)
    kfac.step()
    factors = {name: factors_by_hand(one) for name, one in seen.items()}
    unclipped = {n: solved(*factors[n], before[n], 0.1, split="plain") for n in before}
    scale = (1e-6 / (0.25 * sum((unclipped[n] * before[n]).sum() for n in before))).sqrt()
    assert scale < 0.1
    torch.testing.assert_close(
        gradients_of(model), {name: one * scale for name, one in unclipped.items()}
    )


@pytest.mark.parametrize(
    ("options", "factor", "passes"),
    [
        ({"loss_scale": 8.0}, 8.0, 1),
        ({"grad_scaler": torch.amp.GradScaler("cpu", init_scale=1024.0)}, 1024.0, 1),
        ({"backward_passes_per_step": 2}, 0.5, 2),
    ],
    ids=["scale", "scaler", "passes"],
)
def test_scaled_and_accumulated_losses_give_the_factors_of_their_mean(options, factor, passes):
    states = []
    for how, scale, times in (({}, 1.0, 1), (options, factor, passes)):
        scaler = how.get("grad_scaler")
        if scaler is not None:
            scaler.scale(torch.zeros(()))  # which makes its scale
        model, sgd, kfac = training(**how)
        for step in range(3):
            sgd.zero_grad()
            for _ in range(times):
                backward(model, step, scale)
            if scaler is not None:
                scaler.unscale_(sgd)
                scaler.update()
            kfac.step()
        states.append(copied(kfac))
    torch.testing.assert_close(*states)


def test_what_is_not_finite_is_counted_and_changes_nothing_also_before_there_is_any_factor():
    model, sgd, kfac = training(nn.Sequential(nn.Linear(3, 4)).double())
    backward(model)
    kfac.step()
    before = copied(kfac)
    sgd.zero_grad()
    model(torch.full((2, 3), float("nan")).double()).pow(2).sum().backward()
    kfac.step()
    torch.testing.assert_close(copied(kfac), before, rtol=0, atol=0)
    assert kfac.report().dropped == 2
    assert "2 parts of factors were not finite" in str(kfac.report())
    sgd.zero_grad()
    backward(model, 2)
    kfac.step()
    assert gradient_matrix(model[0]).isfinite().all()
    model, _, kfac = training(nn.Sequential(nn.Linear(3, 4)), solve=EIGH, damping=0.5)
    model(torch.full((2, 3), float("nan"))).pow(2).sum().backward()
    gradient = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    write_gradient(model[0], gradient)
    kfac.step()
    assert kfac.report().dropped == 2
    torch.testing.assert_close(gradient_matrix(model[0]), gradient / 1.5)


def test_a_step_after_that_of_the_optimizer_is_told_once():
    model, sgd, kfac = training()
    for _ in range(2):  # in the right order
        backward(model)
        kfac.step()
        sgd.step()
    backward(model)
    sgd.step()
    with pytest.warns(UserWarning, match=r"optimizer.step\(\) has come before kfac.step\(\)"):
        kfac.step()
    backward(model)
    sgd.step()
    kfac.step()


def test_schedules_say_when_factors_and_inverses_are_computed():
    model, sgd, kfac = training(
        factor_every=lambda step: 1 if step < 2 else 4,
        inverse_every=2,
        damping=lambda step: 0.1 / (step + 1),
    )
    for step in range(9):
        sgd.zero_grad()
        backward(model, step)
        kfac.step()
    report = kfac.report()
    assert (report.steps, report.factor_steps, report.inverse_steps) == (9, 4, 5)


def test_a_state_is_of_means_and_loads_whatever_solves():
    model, sgd, kfac = training()
    seen = backward(model)
    kfac.step()
    state = copy.deepcopy(kfac.state_dict())
    kfac.detach()
    sgd.zero_grad()
    _, _, other = training(model, solve=EIGH, factor_every=10, inverse_every=10)
    other.load_state_dict(state)
    backward(model)
    _check_step(model, other, seen, solve=EIGH)
    assert other.state_dict()["factors"].keys() == state["factors"].keys()
    for wrong in ({}, None, {**state, "step": "x"}, {**state, "step": -1}, {**state, "factors": 1}):
        with pytest.raises(ValueError, match="expected what KFAC"):
            other.load_state_dict(wrong)
    with pytest.raises(ValueError, match="has no such factor"):
        other.load_state_dict({"version": 1, "step": 0, "factors": {"x A": torch.ones(3)}})


def test_sampled_targets_build_g_and_leave_gradients_alone():
    model, sgd, kfac = training(nn.Sequential(nn.Linear(3, 4)).double(), fisher="mc")
    inputs = torch.randn(64, 3, dtype=torch.float64)
    outputs = model(inputs)
    loss = nn.MSELoss()
    kfac.sample(outputs, loss)
    assert model[0].weight.grad is None
    loss(outputs, outputs.detach()).backward()  # the empirical G would be 0
    kfac.step()
    assert kfac.state_dict()["factors"]["0 G"].diagonal().min() > 0
    sgd.zero_grad()
    model(inputs).pow(2).sum().backward()
    with pytest.warns(UserWarning, match=r"built no factor G .*sample\(\)"):
        kfac.step()


LOSSES = [nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss(reduction="sum"), nn.MSELoss()]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("loss", LOSSES)
def test_predictions_that_are_not_finite_change_no_factor(loss, bad):
    model, sgd, kfac = training(nn.Sequential(nn.Linear(3, 4)).double(), fisher="mc")
    states = []
    for number in (1.0, bad):
        sgd.zero_grad()
        outputs = model(torch.full((2, 3), number, dtype=torch.float64))
        kfac.sample(outputs, loss)
        outputs.sum().backward()
        kfac.step()
        states.append(copied(kfac))
    torch.testing.assert_close(*states)
    assert kfac.report().dropped == 2


def test_a_second_one_of_a_layer_takes_off_the_hooks_of_the_first():
    model, sgd, first = training()
    _, _, of_a_part = training(model, skip_layers=["0"])
    backward(model)
    with pytest.raises(ValueError, match=r"detached: another KFAC .* of layer '2'"):
        first.step()
    sgd.zero_grad()
    _, _, last = training(model)
    assert sum(len(module._forward_hooks) for module in model.children()) == 2
    _check_step(model, last, backward(model))
    last.detach()
    assert not any(module._forward_hooks for module in model.modules())
    for call in (of_a_part.step, last.step, lambda: last.sample(torch.ones(1), nn.MSELoss())):
        with pytest.raises(ValueError, match="K-FAC is detached"):
            call()


def test_evaluation_and_copies_of_the_model_add_nothing():
    model, _, kfac = training()
    seen = backward(model)
    others = torch.randn(BATCH - 1, 3, dtype=torch.float64)
    with torch.no_grad():
        model(others)
    model.eval()
    model(others)
    model.train()
    copy.deepcopy(model)(others).sum().backward()
    _check_step(model, kfac, seen)


def test_a_pass_too_many_does_not_count_and_is_told():
    model, sgd, kfac = training()
    backward(model)
    kfac.step()
    before = copied(kfac)
    sgd.zero_grad()
    backward(model)
    with pytest.warns(UserWarning, match="came more often than 1 times in a step"):
        backward(model, 7)
    kfac.step()
    torch.testing.assert_close(kfac.state_dict()["factors"], before)


WRONG = {
    ValueError: [
        ({"damping": 0.0}, "damping=0.0 at step 0 .expected > 0"),
        ({"decay": 1.0}, "decay=1.0 at step 0 .expected 0 to below 1"),
        ({"inverse_every": 0}, "inverse_every=0"),
        ({"distribution": "kaisa"}, "distribution='kaisa' .expected replicate, mpd"),
        ({"distribution": "kaisa:2"}, "distribution='kaisa:2'"),
        ({"loss_scale": 0.0}, "loss_scale=0.0"),
        ({"loss_terms": 0}, "loss_terms=0 .expected a number > 0"),
        ({"loss_terms": 6, "fisher": "mc"}, "loss_terms=6 with fisher='mc' .expected None"),
        ({"skip_layers": ["5"]}, "skip_layers has '5' .expected names of modules, such as 0"),
        (
            {"skip_layers": [nn.Linear]},
            "no layer with factors .*embedding.; 0: it is in skip_layers",
        ),
        (lambda model, sgd: hvd.KFAC(model, torch.optim.LBFGS(model.parameters())), "LBFGS"),
        (
            lambda model, sgd: hvd.KFAC(model, hvd.DistributedOptimizer(sgd, op=hvd.Adasum)),
            "op=Adasum",
        ),
        (
            lambda model, sgd: hvd.KFAC(model, sgd, damping=str)._options.at("damping", 0),
            "damping='0' at step 0",
        ),
    ],
    TypeError: [({"skip_layers": nn.Linear}, "skip_layers=<class .*> .expected a list of names")],
}


@pytest.mark.parametrize(
    ("error", "call", "text"), [(error, *row) for error, rows in WRONG.items() for row in rows]
)
@pytest.mark.usefixtures("job_of_one")
def test_wrong_arguments_are_named(error, call, text):
    model = layered()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(error, match=text):
        call(model, sgd) if callable(call) else training(model, **call)
