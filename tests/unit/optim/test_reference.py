"""Steps of LARS, LAMB and AdamSGD equal those of formulas in float64, of timm and of torch."""

import math

import numpy as np
import pytest
import torch

from aiacc.optim import LAMB, LARS, AdamSGD, interpolation
from tests.support.learning.timm_optimizers import Lamb, Lars
from tests.unit.optim.training import WAYS, assert_close, parameters, reference, train

LISTS = WAYS[:2]


def lars(
    lr, momentum, weight_decay, *, nesterov=False, trust_coefficient=0.001, trust_clamp=None, larc=0
):
    """Algorithm 1 of its paper, of tensors of two dimensions and more."""

    def update(w, g, state, step):
        ratio, decay = 1.0, 0.0
        if w.ndim > 1:
            decay = weight_decay
            length, slope = math.sqrt((w**2).sum()), math.sqrt((g**2).sum())
            if length > 0 and slope > 0:
                ratio = trust_coefficient * length / (slope + decay * length + 1e-8)
            if trust_clamp:
                ratio = min(max(ratio, trust_clamp[0]), trust_clamp[1])
            if larc:
                ratio = min(ratio / lr, 1.0)
        change = ratio * (g + decay * w)
        v = state["v"] = momentum * state["v"] + change if state else change
        return w - lr * (change + momentum * v if nesterov else v)

    return update


def lamb(lr, betas=(0.9, 0.999), weight_decay=0.01, trust_clamp=None, bias_correction=True):
    """Algorithm 2 of its paper, of tensors of two dimensions and more; others as AdamW alone."""

    def update(w, g, state, step):
        b1, b2 = betas
        m = state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
        v = state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * g**2
        if bias_correction:
            m, v = m / (1 - b1**step), v / (1 - b2**step)
        change = m / (np.sqrt(v) + 1e-6)
        ratio = 1.0
        if w.ndim > 1:
            change = change + weight_decay * w
            length, slope = np.sqrt((w**2).sum()), np.sqrt((change**2).sum())
            ratio = length / slope if length > 0 and slope > 0 else 1.0
            if trust_clamp:
                ratio = min(max(ratio, trust_clamp[0]), trust_clamp[1])
        return w - lr * ratio * change

    return update


def hybrid(lr, sgd_lr, weight_decay, share):
    """AdamSGD's, of the documentation."""

    def update(w, g, state, step):
        m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
        v = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g**2
        m, v, s = m / (1 - 0.9**step), v / (1 - 0.999**step), share(step - 1)
        rate = (1 - s) * lr + s * sgd_lr
        step_of_adam = (1 - s) * lr * m / (np.sqrt(v) + 1e-8)
        return (1 - rate * weight_decay) * w - (step_of_adam + s * sgd_lr * m)

    return update


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": True},
        {"momentum": 0.0, "weight_decay": 0.0},
        {"trust_clamp": (3e-3, 6e-3)},
        {"larc": True, "lr": 1e-3},
        {"trust_coefficient": 0.02},
    ],
    ids=str,
)
def test_lars_is_that_of_its_paper(options, way):
    options = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01, **options}
    expected = reference(lars(**options))
    if "fused" not in way:
        found = train(lambda params: LARS(params, **way, **options), torch.float64)
        assert_close(found, expected, 1e-12)
    assert_close(train(lambda params: LARS(params, **way, **options)), expected, 2e-6)


@pytest.mark.parametrize("way", LISTS, ids=str)
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"trust_clamp": (0.3, 1.1)}, {"betas": (0.5, 0.7)}, {"bias_correction": False}],
    ids=str,
)
def test_lamb_is_that_of_its_paper(options, capturable, way):
    options = {"lr": 0.05, **options}
    expected = reference(lamb(**options))
    options = {**options, **way, "capturable": capturable}
    # A step that is counted on the device, in float32, gives corrections in float32.
    found = train(lambda params: LAMB(params, **options), torch.float64)
    assert_close(found, expected, 1e-6 if capturable else 1e-12)
    assert_close(train(lambda params: LAMB(params, **options)), expected, 5e-6)


@pytest.mark.parametrize(
    "share",
    [lambda step: 0.0, lambda step: 1.0, interpolation(1, 3)],
    ids=["Adam", "SGD", "from one to the other"],
)
def test_the_hybrid_is_that_of_the_documentation(share):
    def following(params):
        optimizer = AdamSGD(params, lr=0.05, sgd_lr=0.3, weight_decay=0.1)
        optimizer.follow(share)
        return optimizer

    found = train(following, torch.float64)
    assert_close(found, reference(hybrid(0.05, 0.3, 0.1, share)), 1e-12)


def test_schedulers_change_both_rates_of_the_hybrid():
    def halving(params):
        optimizer = AdamSGD(params, lr=0.05, sgd_lr=0.3, share=0.5)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer

    def halved(w, g, state, step):
        rates = 0.05 * 0.5 ** (step - 1), 0.3 * 0.5 ** (step - 1)
        return hybrid(*rates, 0.0, lambda _: 0.5)(w, g, state, step)

    assert_close(train(halving, torch.float64), reference(halved), 1e-12)


@pytest.mark.parametrize(
    ("kind", "given", "metric"),
    [
        ("ReduceLROnPlateau", {"patience": 0}, [1.0]),
        ("OneCycleLR", {"max_lr": 0.01, "total_steps": 5, "cycle_momentum": False}, []),
        ("CyclicLR", {"base_lr": 0.001, "max_lr": 0.01, "cycle_momentum": False}, []),
    ],
)
def test_the_rate_of_sgd_follows_whoever_sets_lr(kind, given, metric):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = AdamSGD([weight], lr=0.01, sgd_lr=0.5, share=1.0)
    scheduler = getattr(torch.optim.lr_scheduler, kind)(optimizer, **given)
    for _ in range(4):
        before, weight.grad = weight.item(), torch.ones(1)
        optimizer.step()
        assert before - weight.item() == pytest.approx(50 * optimizer.param_groups[0]["lr"], 1e-4)
        scheduler.step(*metric)
    for state in (optimizer.state_dict(), torch.optim.Adam([weight], lr=0.01).state_dict()):
        optimizer = AdamSGD([weight], lr=0.02)
        optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["given_lr"] == 0.01


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("momentum", "dampening", "nesterov", "weight_decay", "larc"),
    [
        (0.9, 0.0, True, 1e-2, False),
        (0.9, 0.0, False, 1e-2, True),
        (0.8, 0.3, False, 0.0, False),
        (0.0, 0.0, False, 1e-2, False),
    ],
)
def test_lars_is_that_of_timm(momentum, dampening, nesterov, weight_decay, larc, way):
    options = {"lr": 0.3, "momentum": momentum, "dampening": dampening}
    options |= {"nesterov": nesterov, "weight_decay": weight_decay}
    expected = train(lambda params: Lars(params, trust_clip=larc, always_adapt=True, **options))
    found = train(lambda params: LARS(params, larc=larc, exclude=None, **way, **options))
    assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("way", LISTS, ids=str)
@pytest.mark.parametrize("max_grad_norm", [None, 1.0, 100.0])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_is_that_of_timm(weight_decay, max_grad_norm, way):
    options = {"lr": 0.05, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
    expected = train(lambda params: Lamb(params, always_adapt=True, **options))
    found = train(lambda params: LAMB(params, exclude=None, **way, **options))
    assert_close(found, expected, 2e-6)


def test_without_sgd_the_hybrid_is_adamw():
    found = train(lambda params: AdamSGD(params, lr=0.05, weight_decay=0.1))
    expected = train(lambda params: torch.optim.AdamW(params, lr=0.05, weight_decay=0.1))
    assert_close(found, expected, 1e-6)


@pytest.mark.parametrize(
    ("kind", "way"), [*((LARS, way) for way in WAYS), *((LAMB, way) for way in LISTS)], ids=str
)
def test_maximize_goes_the_other_way(kind, way):
    up = train(lambda params: kind(params, lr=0.05, weight_decay=0.0, maximize=True, **way))
    down = train(lambda params: kind(params, lr=0.05, weight_decay=0.0, **way), sign=-1)
    assert_close(up, down, 0)
    assert not torch.equal(up[1], parameters()[1])


@pytest.mark.parametrize(
    ("kind", "way", "dtype", "gradient", "options", "result"),
    [
        # |w| = |g|, so the ratio is the coefficient: 300 - 100 * 0.001 * 300.
        *((LARS, way, torch.float16, 300.0, {"lr": 100.0}, 270.0) for way in LISTS),
        *((LAMB, way, torch.bfloat16, 1.0, {"lr": 0.5, "weight_decay": 0}, 150.0) for way in LISTS),
    ],
    ids=str,
)
def test_norms_of_half_precision_do_not_overflow(kind, way, dtype, gradient, options, result):
    weight = torch.nn.Parameter(torch.full((100, 10), 300.0, dtype=dtype))
    weight.grad = torch.full_like(weight, gradient)
    kind([weight], **options, **way).step()
    torch.testing.assert_close(weight.detach(), torch.full_like(weight, result))


@pytest.mark.parametrize(
    ("kind", "options"), [(LARS, {"lr": 0.5, "trust_coefficient": 0.5}), (LAMB, {"lr": 0.05})]
)
def test_autograd_goes_through_a_step(kind, options):
    generator = torch.Generator().manual_seed(3)
    weight, grad = (torch.randn(3, 2, dtype=torch.float64, generator=generator) for _ in range(2))

    def stepped(weight, grad):
        weight = weight.clone()
        optimizer = kind([weight], weight_decay=0.1, differentiable=True, **options)
        for _ in range(3):
            weight.grad = grad
            optimizer.step()
        return weight

    assert torch.autograd.gradcheck(stepped, (weight.requires_grad_(), grad.requires_grad_()))
