"""The hybrid of Adam and SGD at both ends, between them, and the schedules."""

import numpy as np
import pytest
import torch

from aiacc.optim import AdamSGD, interpolation, linear_decay
from aiacc.optim.schedules import linear_factor
from tests.unit.optim.training import STEPS, assert_close, gradients, parameters, reference, train


def formula(lr, sgd_lr, weight_decay, share):
    """Of the documentation."""

    def update(w, g, state, step):
        m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
        v = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g**2
        m, v, s = m / (1 - 0.9**step), v / (1 - 0.999**step), share(step - 1)
        rate = (1 - s) * lr + s * sgd_lr
        return (1 - rate * weight_decay) * w - (
            (1 - s) * lr * m / (np.sqrt(v) + 1e-8) + s * sgd_lr * m
        )

    return update


@pytest.mark.parametrize(
    "share",
    [lambda step: 0.0, lambda step: 1.0, interpolation(1, 3)],
    ids=["Adam", "SGD", "from one to the other"],
)
def test_equal_to_the_formula_in_float64(share):
    def following(params):
        optimizer = AdamSGD(params, lr=0.05, sgd_lr=0.3, weight_decay=0.1)
        optimizer.follow(share)
        return optimizer

    found = train(following, torch.float64)
    assert_close(found, reference(formula(0.05, 0.3, 0.1, share)), 1e-12)


def test_schedulers_change_both_rates():
    def halving(params):
        optimizer = AdamSGD(params, lr=0.05, sgd_lr=0.3, share=0.5)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer

    def halved(w, g, state, step):
        rates = 0.05 * 0.5 ** (step - 1), 0.3 * 0.5 ** (step - 1)
        return formula(*rates, 0.0, lambda _: 0.5)(w, g, state, step)

    assert_close(train(halving, torch.float64), reference(halved), 1e-12)


def test_without_sgd_it_is_adamw():
    found = train(lambda params: AdamSGD(params, lr=0.05, weight_decay=0.1))
    expected = train(lambda params: torch.optim.AdamW(params, lr=0.05, weight_decay=0.1))
    assert_close(found, expected, 1e-6)


def test_its_schedule_goes_on_where_state_was_saved():
    """`follow` counts by the state, not by calls."""
    params, share = parameters(), interpolation(1, 3)
    whole = None
    for halt in (STEPS, 2):
        params = parameters()
        optimizer = AdamSGD(params)
        optimizer.follow(share)
        for number, grads in enumerate(gradients()):
            if number == halt:
                state = optimizer.state_dict()
                optimizer = AdamSGD(params)
                optimizer.load_state_dict(state)
                optimizer.follow(share)
            for parameter, grad in zip(params, grads, strict=True):
                parameter.grad = grad
            optimizer.step()
            assert optimizer.param_groups[0]["share"] == share(number)
        values = [parameter.detach() for parameter in params]
        whole = whole or values
        assert_close(values, whole, 0)


def test_interpolation():
    share = interpolation(10, 20)
    assert [share(step) for step in (0, 10, 15, 20, 99)] == [0, 0, 0.5, 1, 1]
    assert [interpolation(5, 5)(step) for step in (4, 5)] == [0, 1]
    with pytest.raises(ValueError, match="begin=3, end=2"):
        interpolation(3, 2)
    with pytest.raises(ValueError, match="share=2"):
        AdamSGD([torch.nn.Parameter(torch.ones(1))], share=2)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = AdamSGD([parameter])
    with pytest.raises(TypeError, match=r"share=3 .expected a function"):
        optimizer.follow(3)
    optimizer.follow(lambda number: number + 0.5)
    parameter.grad = torch.ones(1)
    optimizer.step()
    with pytest.raises(ValueError, match=r"share=1\.5 in step 1 .expected from 0 to 1"):
        optimizer.step()


def test_linear_decay_with_warm_up():
    factors = [linear_factor(step, 4, 8, 0.2, 0.1) for step in range(10)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 0.775, 0.55, 0.325, 0.1, 0.1])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=2.0)
    scheduler = linear_decay(optimizer, 4, warm_up=2)
    rates = []
    for _ in range(5):
        rates += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert rates == [0.0, 1.0, 2.0, 1.0, 0.0]
    for bad in ({"warm_up": 4}, {"warm_up": -1}, {"last": -1.0}):
        with pytest.raises(ValueError, match="expected"):
            linear_decay(optimizer, 4, **bad)
