"""LAMB against a reference in float64, against timm's, and what goes with it."""

import numpy as np
import pytest
import torch

from aiacc.optim import LAMB
from tests.support.timm_optimizers import Lamb
from tests.unit.optim.training import assert_close, parameters, reference, train

FOREACH = [False, True]


def paper(lr, betas=(0.9, 0.999), weight_decay=0.01, clamp=None, bias_correction=True):
    """Algorithm 2, of tensors of two dimensions and more; others as AdamW without decay."""

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
            if clamp:
                ratio = min(max(ratio, clamp[0]), clamp[1])
        return w - lr * ratio * change

    return update


@pytest.mark.parametrize("foreach", FOREACH)
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"trust_clamp": (0.3, 1.1)}, {"betas": (0.5, 0.7)}, {"bias_correction": False}],
    ids=str,
)
def test_equal_to_the_paper_in_float64(options, capturable, foreach):
    names = {"trust_clamp": "clamp"}
    expected = reference(paper(0.05, **{names.get(name, name): v for name, v in options.items()}))
    options = {"lr": 0.05, "foreach": foreach, "capturable": capturable, **options}
    # A step that is counted on the device, in float32, gives corrections in float32.
    found = train(lambda params: LAMB(params, **options), torch.float64)
    assert_close(found, expected, 1e-6 if capturable else 1e-12)
    assert_close(train(lambda params: LAMB(params, **options)), expected, 5e-6)


@pytest.mark.parametrize("foreach", FOREACH)
@pytest.mark.parametrize("max_grad_norm", [None, 1.0, 100.0])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equal_to_timm(weight_decay, max_grad_norm, foreach):
    options = {
        "lr": 0.05,
        "weight_decay": weight_decay,
        "max_grad_norm": max_grad_norm,
        "foreach": foreach,
    }
    expected = train(lambda params: Lamb(params, always_adapt=True, **options))
    found = train(lambda params: LAMB(params, exclude=None, **options))
    assert_close(found, expected, 2e-6)


@pytest.mark.parametrize("foreach", FOREACH)
def test_a_tensor_as_learning_rate_and_maximize(foreach):
    one, other, up = (
        train(lambda params, o=options: LAMB(params, foreach=foreach, **o))
        for options in ({"lr": 0.05}, {"lr": torch.tensor(0.05)}, {"lr": 0.05, "maximize": True})
    )
    assert_close(one, other, 1e-6)
    start = [parameter.detach() for parameter in parameters()]
    assert (one[1] - start[1]).sign().equal((start[1] - up[1]).sign())


def test_half_precision_has_float32_norms():
    for foreach in FOREACH:
        weight = torch.nn.Parameter(torch.full((100, 10), 300.0, dtype=torch.bfloat16))
        weight.grad = torch.ones_like(weight)
        LAMB([weight], lr=0.5, weight_decay=0.0, foreach=foreach).step()
        torch.testing.assert_close(weight.detach(), torch.full_like(weight, 150.0))


def test_autograd_goes_through_a_step():
    generator = torch.Generator().manual_seed(3)
    weight, grad = (torch.randn(3, 2, dtype=torch.float64, generator=generator) for _ in range(2))

    def stepped(weight, grad):
        weight = weight.clone()
        optimizer = LAMB([weight], lr=0.05, weight_decay=0.1, differentiable=True)
        for _ in range(3):
            weight.grad = grad
            optimizer.step()
        return weight

    assert torch.autograd.gradcheck(stepped, (weight.requires_grad_(), grad.requires_grad_()))


def test_what_makes_no_sense_is_refused():
    params = [torch.nn.Parameter(torch.ones(2, 2))]
    with pytest.raises(ValueError, match=r"betas=\(1.0, 0.9\)"):
        LAMB(params, betas=(1.0, 0.9))
    with pytest.raises(ValueError, match="max_grad_norm=0"):
        LAMB(params, max_grad_norm=0)
