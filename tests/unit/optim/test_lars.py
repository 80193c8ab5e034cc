"""LARS against a reference in float64, against timm's, and what goes with it."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch

from aiacc.optim import LARS
from tests.support.timm_optimizers import Lars
from tests.unit.optim.training import (
    SHAPES,
    assert_close,
    gradients,
    parameters,
    reference,
    train,
)

#: Tensor by tensor, with operations on lists, and by the core.
WAYS = [{"foreach": False}, {"foreach": True}, {"fused": True}]


def paper(lr, momentum, weight_decay, *, nesterov=False, coefficient=0.001, clamp=None, larc=False):
    """Algorithm 1, of tensors of two dimensions and more."""

    def update(w, g, state, step):
        ratio, decay = 1.0, 0.0
        if w.ndim > 1:
            decay = weight_decay
            length, slope = math.sqrt((w**2).sum()), math.sqrt((g**2).sum())
            if length > 0 and slope > 0:
                ratio = coefficient * length / (slope + decay * length + 1e-8)
            if clamp:
                ratio = min(max(ratio, clamp[0]), clamp[1])
            if larc:
                ratio = min(ratio / lr, 1.0)
        change = ratio * (g + decay * w)
        v = state["v"] = momentum * state["v"] + change if state else change
        return w - lr * (change + momentum * v if nesterov else v)

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
def test_equal_to_the_paper_in_float64(options, way):
    options = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.01, **options}
    names = {"trust_coefficient": "coefficient", "trust_clamp": "clamp"}
    expected = reference(paper(**{names.get(name, name): v for name, v in options.items()}))
    if "fused" not in way:
        found = train(lambda params: LARS(params, **way, **options), torch.float64)
        assert_close(found, expected, 1e-12)
    found = train(lambda params: LARS(params, **way, **options))
    assert_close(found, expected, 2e-6)


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
def test_equal_to_timm(momentum, dampening, nesterov, weight_decay, larc, way):
    options = {
        "lr": 0.3,
        "momentum": momentum,
        "dampening": dampening,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
    }
    expected = train(lambda params: Lars(params, trust_clip=larc, always_adapt=True, **options))
    found = train(lambda params: LARS(params, larc=larc, exclude=None, **way, **options))
    assert_close(found, expected, 1e-6)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_maximize_goes_the_other_way(way):
    found = train(lambda params: LARS(params, lr=0.5, maximize=True, **way))
    expected = train(lambda params: LARS(params, lr=0.5, **way), sign=-1)
    assert_close(found, expected, 0)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_tensor_as_learning_rate_and_a_schedule(way):
    number = train(lambda params: LARS(params, lr=0.25, weight_decay=0.1, **way))
    way = {} if "fused" in way else way
    tensor = torch.tensor(0.25)
    assert_close(
        train(lambda params: LARS(params, lr=tensor, weight_decay=0.1, **way)), number, 1e-6
    )


def test_norms_of_half_precision_do_not_overflow():
    big = torch.nn.Parameter(torch.full((100, 10), 300.0, dtype=torch.float16))
    for foreach in (False, True):
        weight = torch.nn.Parameter(big.detach().clone())
        weight.grad = torch.full_like(weight, 300.0)
        LARS([weight], lr=100.0, foreach=foreach).step()
        # |w| = |g|, so the ratio is the coefficient: 300 - 100 * 0.001 * 300.
        torch.testing.assert_close(weight.detach(), torch.full_like(weight, 270.0))


def test_excluded_parameters_are_groups_of_their_own():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    groups = LARS(model.parameters(), weight_decay=0.1).param_groups
    assert [(len(g["params"]), g["adapt"], g["weight_decay"]) for g in groups] == [
        (1, True, 0.1),
        (3, False, 0.0),
    ]
    (group,) = LARS(model.parameters(), exclude=None).param_groups
    assert (len(group["params"]), group["adapt"]) == (4, True)
    named = LARS(model.named_parameters(), exclude=("*.bias", "1.*")).param_groups
    assert [group["param_names"] for group in named] == [
        ["0.weight"],
        ["0.bias", "1.weight", "1.bias"],
    ]
    one = LARS(model.named_parameters(), exclude="*.bias").param_groups
    assert [group["param_names"] for group in one] == [
        ["0.weight", "1.weight"],
        ["0.bias", "1.bias"],
    ]
    chosen = LARS(model.parameters(), exclude=lambda name, p: p.numel() == 12).param_groups
    assert [len(group["params"]) for group in chosen] == [3, 1]
    own = LARS([{"params": list(model.parameters()), "adapt": False, "weight_decay": 0.3}])
    assert [(g["adapt"], g["weight_decay"]) for g in own.param_groups] == [(False, 0.3)]
    with pytest.raises(ValueError, match="named_parameters"):
        LARS(model.parameters(), exclude=["*.bias"])


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_state_loads_and_goes_on_as_before(way):
    params = parameters()
    optimizer = LARS(params, lr=0.5, weight_decay=0.1, **way)
    for number, grads in enumerate(gradients()):
        if number == 2:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = LARS(params, lr=9.0)
            optimizer.load_state_dict(state)
        for parameter, grad in zip(params, grads, strict=True):
            parameter.grad = grad
        optimizer.step()
    whole = train(lambda params: LARS(params, lr=0.5, weight_decay=0.1, **way))
    assert_close([parameter.detach() for parameter in params], whole, 0)


def test_autograd_goes_through_a_step():
    grad = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def stepped(weight, grad):
        weight = weight.clone()
        optimizer = LARS(
            [weight], lr=0.5, weight_decay=0.1, trust_coefficient=0.5, differentiable=True
        )
        for _ in range(3):
            weight.grad = grad
            optimizer.step()
        return weight

    weight = torch.ones(3, 2, dtype=torch.float64).add_(grad.flip(0)).requires_grad_()
    assert torch.autograd.gradcheck(stepped, (weight, grad.clone().requires_grad_()))


def test_a_scaler_for_mixed_precision_leaves_out_overflows():
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    (weight,) = params = [torch.nn.Parameter(torch.ones(2, 2))]
    (other,) = [torch.nn.Parameter(torch.ones(2, 2))]
    optimizer, plain = LARS(params, lr=1.0), LARS([other], lr=1.0)
    for scale in (1.0, math.inf, 2.0):
        scaler.scale((weight * scale).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if math.isfinite(scale):
            other.grad = torch.full((2, 2), scale)
            plain.step()
    assert torch.equal(weight, other)


def test_what_makes_no_sense_is_refused():
    (weight,) = params = [torch.nn.Parameter(torch.ones(2, 2))]
    for name, value in itertools.product(("lr", "momentum", "weight_decay", "eps"), (-1.0, np.nan)):
        with pytest.raises(ValueError, match=f"{name}={value} .expected >= 0"):
            LARS(params, **{name: value})
    with pytest.raises(ValueError, match=r"nesterov=True with momentum=0\.0"):
        LARS(params, momentum=0.0, nesterov=True)
    with pytest.raises(ValueError, match=r"trust_clamp=\(2, 1\)"):
        LARS(params, trust_clamp=(2, 1))
    with pytest.raises(ValueError, match=r"trust_clamp=1\.0 .expected .least, largest"):
        LARS(params, trust_clamp=1.0)
    with pytest.raises(ValueError, match="2 elements"):
        LARS(params, lr=torch.ones(2))
    with pytest.raises(ValueError, match="fused=True with foreach=True or"):
        LARS(params, fused=True, foreach=True)
    with pytest.raises(ValueError, match="differentiable=True with foreach=True"):
        LARS(params, differentiable=True, foreach=True)
    weight.grad = torch.ones(2, 2).to_sparse()
    with pytest.raises(ValueError, match=r"layout torch\.sparse_coo"):
        LARS(params).step()


def test_parameters_without_gradient_stay():
    params = parameters()
    before = [parameter.detach().clone() for parameter in params]
    optimizer = LARS(params)
    params[0].grad = torch.ones(SHAPES[0])
    assert optimizer.step(lambda: 3.0) == 3.0
    assert not torch.equal(params[0], before[0])
    assert_close([p.detach() for p in params[1:]], before[1:], 0)


def test_the_core_takes_any_layout_without_gaps():
    start = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(4))
    last = start.contiguous(memory_format=torch.channels_last)
    found = []
    for values in (start, last):
        weight = torch.nn.Parameter(values.clone(memory_format=torch.preserve_format))
        optimizer = LARS([weight], weight_decay=0.1, fused=True)
        for _ in range(3):
            weight.grad = torch.full_like(weight, 0.5).add_(values)
            version = weight._version
            optimizer.step()
            assert weight._version > version  # so that autograd notices
        found.append(weight.detach())
        assert optimizer.state[weight]["momentum_buffer"].stride() == weight.stride()
    assert_close(found[:1], found[1:], 1e-6)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_momentum_in_16_bits_goes_on_in_32(way):
    layer = torch.nn.Linear(40, 30, bias=False).to(torch.bfloat16)
    optimizer = LARS(layer.parameters(), lr=0.1, **({} if way.get("fused") else way))
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizer.step()
    momentum = optimizer.state[layer.weight]["momentum_buffer"].float()
    layer.float()
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    assert_close([layer.weight.detach()], [before - 0.1 * 0.9 * momentum], 1e-4)


def test_memory_of_another_size_is_not_touched():
    weight = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = LARS([weight], lr=1.0)
    weight.grad = torch.ones(4, 2)
    optimizer.step()
    weight.data = torch.ones(40, 2)  # as if it had grown
    with pytest.raises(RuntimeError, match="size of tensor"):  # the gradient has not
        optimizer.step()
    weight.grad = torch.ones(40, 2)
    with pytest.raises(ValueError, match=r"momentum_buffer of shape \(4, 2\).* \(40, 2\)"):
        optimizer.step()
    del optimizer.state[weight]
    optimizer.step()
    assert optimizer.state[weight]["momentum_buffer"].shape == (40, 2)


def test_threads_change_no_bit():
    most, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            random = torch.Generator().manual_seed(5)
            params = [torch.nn.Parameter(torch.randn(n, 256, generator=random)) for n in range(99)]
            for parameter in params:
                parameter.grad = torch.randn(parameter.shape, generator=random)
            optimizer = LARS(params, weight_decay=0.1, nesterov=True, fused=True)
            optimizer.step()
            optimizer.step()
            found.append([parameter.detach() for parameter in params])
    finally:
        torch.set_num_threads(most)
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(
    ("made", "grad", "text"),
    [
        (torch.ones(2, 2, dtype=torch.float64), None, "torch.float64 on cpu"),
        (torch.ones(4, 4)[:, :2], None, "strides"),
        (torch.ones(2, 3), torch.ones(3, 2).T, "strides .* and a gradient's"),
    ],
    ids=["float64", "gaps", "transposed gradient"],
)
def test_what_the_core_cannot_is_said_or_done_otherwise(made, grad, text):
    weight = torch.nn.Parameter(made)
    weight.grad = torch.ones_like(weight) if grad is None else grad
    with pytest.raises(ValueError, match=f"fused=True with .*{text}"):
        LARS([weight], fused=True).step()
    LARS([weight], lr=100.0).step()
    assert not torch.equal(weight, made.clone().fill_(1.0))
