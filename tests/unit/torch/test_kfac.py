"""KFAC in one process: what it does to gradients, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import aiacc.torch as hvd


def _linear(**options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, dtype=torch.float64), nn.Tanh())
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    defaults = {"factor_every": 1, "inverse_every": 1, "damping": 0.1, "kl_clip": None}
    return model, sgd, hvd.KFAC(model, sgd, **{**defaults, **options})


def _backward(model, seed=1, factor=1.0):
    """The inputs, and the gradients of the outputs of the layer, of each example's own loss."""
    torch.manual_seed(seed)
    inputs = torch.randn(6, 3, dtype=torch.float64)
    outputs = model[0](inputs)
    outputs.retain_grad()
    (model[1](outputs).pow(2).sum(1).mean() * factor).backward()
    return inputs, outputs.grad * 6 / factor


def _by_hand(inputs, gradients, gradient, damping):
    """What K-FAC makes of the gradient of a linear layer with bias, with dense matrices."""
    rows = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.float64)], 1)
    a, g = rows.T @ rows / len(rows), gradients.T @ gradients / len(rows)
    pi = (a.trace() / len(a) / (g.trace() / len(g))).sqrt()
    a = a + pi * damping**0.5 * torch.eye(len(a), dtype=torch.float64)
    g = g + damping**0.5 / pi * torch.eye(len(g), dtype=torch.float64)
    return torch.linalg.solve(g, torch.linalg.solve(a, gradient.T).T)


def _gradient(layer):
    return torch.cat([layer.weight.grad, layer.bias.grad.unsqueeze(1)], 1)


def test_a_gradient_is_multiplied_by_both_inverses():
    model, _, kfac = _linear()
    seen = _backward(model)
    before = _gradient(model[0])
    kfac.step()
    expected = _by_hand(*seen, before, 0.1)
    torch.testing.assert_close(_gradient(model[0]), expected)


def test_the_length_of_a_step_is_bounded():
    model, _, kfac = _linear(kl_clip=1e-6, lr=lambda step: 0.5 if step == 0 else 0.1)
    seen = _backward(model)
    before = _gradient(model[0])
    kfac.step()
    unclipped = _by_hand(*seen, before, 0.1)
    scale = (1e-6 / (0.25 * (unclipped * before).sum())).sqrt()
    assert scale < 0.1
    torch.testing.assert_close(_gradient(model[0]), unclipped * scale)


def test_scaled_and_accumulated_losses_give_the_factors_of_their_mean():
    states = []
    for options, factor, passes in (
        ({}, 1.0, 1),
        ({"loss_scale": 8.0}, 8.0, 1),
        ({"grad_scaler": torch.amp.GradScaler("cpu", init_scale=1024.0)}, 1024.0, 1),
        ({"backward_passes_per_step": 2}, 0.5, 2),
    ):
        if "grad_scaler" in options:
            options["grad_scaler"].scale(torch.zeros(()))  # which makes its scale
        model, sgd, kfac = _linear(**options)
        for step in range(3):
            sgd.zero_grad()
            for _ in range(passes):
                _backward(model, step, factor)
            if "grad_scaler" in options:
                options["grad_scaler"].unscale_(sgd)
                options["grad_scaler"].update()
            kfac.step()
        states.append(kfac.state_dict()["factors"])
    for state in states[1:]:
        for name, factor in state.items():
            torch.testing.assert_close(factor, states[0][name])


def test_factors_are_float32_under_autocast():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    kfac = hvd.KFAC(model, torch.optim.SGD(model.parameters(), 0.1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(
            model(torch.randn(4, 1, 4, 4)), torch.tensor([0, 1, 2, 0])
        )
    loss.backward()
    before = model[2].weight.grad.clone()
    kfac.step()
    assert {factor.dtype for factor in kfac.state_dict()["factors"].values()} == {torch.float32}
    assert not torch.allclose(model[2].weight.grad, before)


def test_modules_without_factors_are_left_to_the_optimizer_and_named():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.norm = nn.LayerNorm(4)
            self.frozen = nn.Linear(4, 4)
            self.skipped = nn.Sequential(nn.Linear(4, 4))
            self.kept = nn.Linear(4, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.table.weight
            self.frozen.weight.requires_grad = False

        def forward(self, tokens):
            found = self.skipped(self.frozen(self.norm(self.table(tokens))))
            return self.head(self.kept(found))

    model = Tied()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    kfac = hvd.KFAC(model, sgd, skip_layers=["skipped"])
    nn.functional.cross_entropy(model(torch.tensor([0, 1])), torch.tensor([1, 2])).backward()
    before = model.skipped[0].weight.grad.clone()
    kfac.step()
    assert torch.equal(model.skipped[0].weight.grad, before)
    report = kfac.report()
    assert report.inverted_by == {0: ["kept A", "kept G"]}
    assert set(report.left_out) == {"table", "norm", "frozen", "skipped.0", "head"}
    assert "its weight is that of head, too" in str(report)
    with pytest.raises(ValueError, match="no layer with factors"):
        hvd.KFAC(model, sgd, skip_layers=[nn.Linear])


def test_weights_that_are_no_parameters_or_used_by_others_are_left_out():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2)
            self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
            self.kept = nn.Linear(4, 2)

        def forward(self, tokens):
            return self.kept(self.normed(self.attention(tokens, tokens, tokens)[0]))

    model = Attention()
    kfac = hvd.KFAC(model, torch.optim.SGD(model.parameters(), 0.1))
    model(torch.randn(3, 2, 4)).pow(2).sum().backward()
    kfac.step()
    left_out = kfac.report().left_out
    assert "without calling it" in left_out["attention.out_proj"]
    assert "is computed from others" in left_out["normed"]
    assert kfac.report().inverted_by == {0: ["kept A", "kept G"]}


def test_what_is_not_finite_is_counted_and_changes_nothing():
    model, sgd, kfac = _linear()
    _backward(model)
    kfac.step()
    before = copy.deepcopy(kfac.state_dict()["factors"])
    sgd.zero_grad()
    inputs = torch.full((2, 3), float("nan"), dtype=torch.float64)
    model(inputs).sum().backward()
    kfac.step()
    after = kfac.state_dict()["factors"]
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert kfac.report().dropped == 2
    assert "2 parts of factors were not finite" in str(kfac.report())
    sgd.zero_grad()
    seen = _backward(model, 2)
    assert all(one.isfinite().all() for one in seen)
    kfac.step()
    assert _gradient(model[0]).isfinite().all()


def test_an_inversion_that_fails_leaves_the_last_inverse():
    model, sgd, kfac = _linear()
    _backward(model)
    kfac.step()
    state = kfac.state_dict()
    state["factors"]["0 A"] = torch.full_like(state["factors"]["0 A"], float("inf"))
    before = kfac._layers[0].a.inverse
    kfac._layers[0].a.mean.fill_(float("inf"))
    sgd.zero_grad()
    _backward(model)
    kfac.step()
    assert kfac._layers[0].a.inverse is before
    assert kfac.report().failures == 1


def test_a_step_after_that_of_the_optimizer_is_told_once():
    model, sgd, kfac = _linear()
    for _ in range(2):  # in the right order
        _backward(model)
        kfac.step()
        sgd.step()
    _backward(model)
    sgd.step()
    with pytest.warns(UserWarning, match=r"optimizer.step\(\) has come before kfac.step\(\)"):
        kfac.step()
    _backward(model)
    sgd.step()
    kfac.step()


def test_schedules_say_when_factors_and_inverses_are_computed():
    model, sgd, kfac = _linear(
        factor_every=lambda step: 1 if step < 2 else 4,
        inverse_every=2,
        damping=lambda step: 0.1 / (step + 1),
    )
    for step in range(9):
        sgd.zero_grad()
        _backward(model, step)
        kfac.step()
    report = kfac.report()
    assert (report.steps, report.factor_steps, report.inverse_steps) == (9, 4, 5)


def test_a_checkpoint_goes_on_as_if_nothing_had_happened():
    model, sgd, kfac = _linear()
    other, its_sgd, its_kfac = _linear()
    for step in range(6):
        if step == 3:
            other.load_state_dict(model.state_dict())
            its_kfac.load_state_dict(copy.deepcopy(kfac.state_dict()))
        for net, optimizer, preconditioner in (
            (model, sgd, kfac),
            *([(other, its_sgd, its_kfac)] if step >= 3 else []),
        ):
            optimizer.zero_grad()
            _backward(net, step)
            preconditioner.step()
            optimizer.step()
    torch.testing.assert_close(other[0].weight, model[0].weight)
    with pytest.raises(ValueError, match="expected what KFAC"):
        kfac.load_state_dict({})
    with pytest.raises(ValueError, match="has no such factor"):
        kfac.load_state_dict({"version": 1, "step": 0, "factors": {"x A": torch.ones(3)}})


def test_sampled_targets_build_g_and_leave_gradients_alone():
    model, sgd, kfac = _linear(fisher="mc")
    inputs = torch.randn(64, 3, dtype=torch.float64)
    outputs = model(inputs)
    loss = nn.MSELoss()
    kfac.sample(outputs, loss)
    assert model[0].weight.grad is None
    loss(outputs, outputs.detach()).backward()  # the empirical G would be 0
    kfac.step()
    assert kfac._layers[0].g.mean.diagonal().min() > 0
    sgd.zero_grad()
    model(inputs).pow(2).sum().backward()
    with pytest.warns(UserWarning, match=r"built no factor G .*sample\(\)"):
        kfac.step()


def test_evaluation_and_copies_of_the_model_add_nothing():
    model, _, kfac = _linear()
    seen = _backward(model)
    before = _gradient(model[0])
    with torch.no_grad():
        model(torch.randn(5, 3, dtype=torch.float64))
    model.eval()
    model(torch.randn(5, 3, dtype=torch.float64))
    model.train()
    copy.deepcopy(model)(torch.randn(5, 3, dtype=torch.float64)).sum().backward()
    kfac.step()
    torch.testing.assert_close(_gradient(model[0]), _by_hand(*seen, before, 0.1))


def test_a_pass_too_many_does_not_count_and_is_told():
    model, sgd, kfac = _linear()
    _backward(model)
    kfac.step()
    before = copy.deepcopy(kfac.state_dict()["factors"])
    sgd.zero_grad()
    _backward(model)
    with pytest.warns(UserWarning, match="came more often than 1 times in a step"):
        _backward(model, 7)
    kfac.step()
    for name, factor in kfac.state_dict()["factors"].items():
        torch.testing.assert_close(factor, before[name])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"damping": 0.0}, "damping=0.0 at step 0 .expected > 0"),
        ({"decay": 1.0}, "decay=1.0 at step 0 .expected 0 to below 1"),
        ({"factor_every": 1.5}, "factor_every=1.5 at step 0 .expected a whole number"),
        ({"inverse_every": 0}, "inverse_every=0"),
        ({"kl_clip": -1.0}, "kl_clip=-1.0"),
        ({"distribution": "kaisa"}, "distribution='kaisa' .expected replicate, mpd"),
        ({"distribution": "kaisa:2"}, "distribution='kaisa:2'"),
        ({"fisher": "true"}, "fisher='true' .expected one of empirical, mc"),
        ({"approx": "x"}, "approx='x'"),
        ({"split": "x"}, "split='x'"),
        ({"solve": "x"}, "solve='x' .expected one of cholesky, eigh"),
        ({"loss_scale": 0.0}, "loss_scale=0.0"),
        ({"loss_scale": None}, "loss_scale=None"),
        ({"distribution": None}, "distribution=None .expected replicate"),
        ({"lr": -1.0}, "lr=-1.0 at step 0 .expected >= 0"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0 .expected at least 1"),
        ({"skip_layers": ["5"]}, "skip_layers has '5' .expected names of modules, such as 0"),
    ],
)
def test_wrong_arguments_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        _linear(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"damping": "0.1"}, "damping='0.1' .expected a number, or a function of the step"),
        ({"inverse_every": None}, "inverse_every=None .expected a number"),
        ({"lr": "0.1"}, "lr='0.1' .expected a number"),
        ({"skip_layers": "0"}, "skip_layers='0' .expected a list of names"),
        ({"process_set": None}, "process_set=None .expected a ProcessSet"),
        ({"grad_scaler": 1024.0}, "grad_scaler=1024.0 .expected a GradScaler"),
        ({"skip_layers": nn.Linear}, "skip_layers=<class .*> .expected a list of names"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(options, text):
    with pytest.raises(TypeError, match=text):
        _linear(**options)


def test_optimizers_that_cannot_be_preconditioned_are_refused():
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="expected one of torch"):
        hvd.KFAC(model, model)
    with pytest.raises(TypeError, match=r"model=None \(expected a Module\)"):
        hvd.KFAC(None, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.KFAC(model, torch.optim.LBFGS(model.parameters()))
    hvd.init()
    try:
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        adasum = hvd.DistributedOptimizer(sgd, op=hvd.Adasum)
        with pytest.raises(ValueError, match="op=Adasum"):
            hvd.KFAC(model, adasum)
    finally:
        hvd.shutdown()
