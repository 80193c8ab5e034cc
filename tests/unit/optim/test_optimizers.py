"""LARS, LAMB and AdamSGD beside their numbers: groups, states, schedules, and what is refused."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

import aiacc
from aiacc import _core
from aiacc.optim import LAMB, LARS, AdamSGD, interpolation, linear_decay
from aiacc.optim.schedules import linear_factor
from tests.unit.optim.training import (
    SHAPES,
    STEPS,
    WAYS,
    assert_close,
    gradients,
    parameters,
    train,
)


def ones(*shape):
    return torch.nn.Parameter(torch.ones(shape))


def step(optimizer, params, grads=None):
    for number, parameter in enumerate(params):
        parameter.grad = torch.ones_like(parameter) if grads is None else grads[number]
    optimizer.step()


def test_groups_stay_as_they_were_given():
    """So that rates, one for each, are those of the groups: also where some are excluded."""
    for kind in (LARS, LAMB):
        params = [ones(4, 3), ones(4), ones(2, 4), ones(2)]
        optimizer = kind([{"params": params[:2]}, {"params": params[2:]}])
        torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda _: 0.0, lambda _: 1.0])
        step(optimizer, params)
        assert [bool((one == 1).all()) for one in params] == [True, True, False, False], kind
        optimizer.param_groups[1]["params"].pop()
        with pytest.raises(ValueError, match=r"group 1 has 1 parameters and 'excluded' of 2"):
            optimizer.step()


def test_excluded_parameters_have_neither_ratio_nor_decay():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))

    def excluded(named=False, **options):
        params = model.named_parameters() if named else model.parameters()
        (group,) = LARS(params, weight_decay=0.1, **options).param_groups
        return group["excluded"]

    assert excluded() == (False, True, True, True)
    assert excluded(exclude=None) == (False,) * 4
    assert excluded(named=True, exclude=("*.bias", "1.*")) == (False, True, True, True)
    assert excluded(named=True, exclude="*.bias") == (False, True, False, True)
    assert excluded(exclude=lambda name, p: p.numel() == 12) == (True, False, False, False)
    own = LARS([{"params": list(model.parameters()), "adapt": False, "weight_decay": 0.3}])
    (group,) = own.param_groups
    assert (group["excluded"], group["weight_decay"]) == ((False,) * 4, 0.3)  # as it was given
    with pytest.raises(ValueError, match="named_parameters"):
        excluded(exclude=["*.bias"])
    bias = ones(4)
    step(LARS([bias], lr=0.5, weight_decay=0.1), [bias])
    assert torch.equal(bias, torch.full((4,), 0.5))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_have_what_the_optimizer_was_given(copied):
    model, more = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    optimizer = copied(LARS(model.named_parameters(), exclude=("*ight",)))
    optimizer.add_param_group({"params": more.named_parameters()})
    assert [group["excluded"] for group in optimizer.param_groups] == [(True, False)] * 2
    weight = ones(2, 2)
    hybrid = AdamSGD([weight])
    hybrid.follow(interpolation(0, 2))
    hybrid = copied(hybrid)
    for share in (0.0, 0.5, 1.0):
        step(hybrid, hybrid.param_groups[0]["params"])
        assert hybrid.param_groups[0]["share"] == share


def test_a_limit_of_gradients_is_that_of_the_group():
    """Also one that was loaded; the norm is that of the gradients of all groups."""
    weights = [ones(2, 2) for _ in range(3)]
    groups = [{"params": [weights[0]]}, {"params": [weights[1]], "max_grad_norm": 50.0}]
    saved = LAMB([*groups, {"params": [weights[2]], "max_grad_norm": None}], max_grad_norm=10.0)
    optimizer = LAMB([{"params": [one]} for one in weights])
    optimizer.load_state_dict(saved.state_dict())
    step(optimizer, weights, [torch.full((2, 2), value) for value in (30.0, 20.0, 34.64102)])
    found = [optimizer.state[one]["exp_avg"][0, 0].item() for one in weights]
    assert found == pytest.approx([0.3, 1.0, 3.464102])  # the norm is 100


def test_parameters_without_gradient_stay():
    params = parameters()
    before = [parameter.detach().clone() for parameter in params]
    optimizer = LARS(params)
    params[0].grad = torch.ones(SHAPES[0])
    assert optimizer.step(lambda: 3.0) == 3.0
    assert not torch.equal(params[0], before[0])
    assert_close([p.detach() for p in params[1:]], before[1:], 0)


def test_a_scaler_for_mixed_precision_leaves_out_overflows():
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    weight, other = ones(2, 2), ones(2, 2)
    optimizer, plain = LARS([weight], lr=1.0), LARS([other], lr=1.0)
    for scale in (1.0, math.inf, 2.0):
        scaler.scale((weight * scale).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if math.isfinite(scale):
            step(plain, [other], [torch.full((2, 2), scale)])
    assert torch.equal(weight, other)


def _hybrid(params, **_):
    optimizer = AdamSGD(params)
    optimizer.follow(interpolation(1, 3))
    return optimizer


@pytest.mark.parametrize(
    ("make", "options"),
    [(LARS, {"lr": 0.5, "weight_decay": 0.1, **way}) for way in WAYS] + [(_hybrid, {})],
)
def test_a_state_loads_and_goes_on_as_before(make, options):
    """Also where `follow` was: it counts by the state, not by calls."""
    params = parameters()
    optimizer = make(params, **options)
    for number, grads in enumerate(gradients()):
        if number == 2:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = make(params, lr=9.0)
            optimizer.load_state_dict(state)
        step(optimizer, params, grads)
        if make is _hybrid:
            assert optimizer.param_groups[0]["share"] == interpolation(1, 3)(number)
    whole = train(lambda params: make(params, **options))
    assert_close([parameter.detach() for parameter in params], whole, 0)
    assert number == STEPS - 1


def _two(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    shapes = ((4, 5), (5,))
    return [torch.randn(one, generator=generator, dtype=dtype).requires_grad_() for one in shapes]


@pytest.mark.parametrize("kind", [LARS, LAMB, AdamSGD])
@pytest.mark.parametrize(
    "other",
    [
        lambda groups: torch.optim.SGD(groups, lr=0.25, momentum=0.9),
        lambda groups: torch.optim.SGD(groups, lr=0.25),
        lambda groups: torch.optim.Adam(groups, lr=0.25),
    ],
)
def test_it_goes_on_from_a_state_of_torch(kind, other):
    before, after = _two(), _two()
    saved = other([{"params": [one]} for one in before])
    step(saved, before)
    groups = [{"params": [one]} for one in after]
    optimizer = kind(groups, **({} if kind is AdamSGD else {"trust_clamp": (0.0, 2.0)}))
    own = [{**group} for group in optimizer.param_groups]
    optimizer.load_state_dict(saved.state_dict())
    for group, mine in zip(optimizer.param_groups, own, strict=True):
        assert set(mine) <= set(group)
        assert group["lr"] == 0.25  # as it was saved
        assert group.get("excluded") == mine.get("excluded")  # as it is here
        assert group.get("trust_clamp") == mine.get("trust_clamp")
    step(optimizer, after)
    for parameter, start in zip(after, _two(), strict=True):
        assert torch.isfinite(parameter).all()
        assert not torch.equal(parameter, start)


@pytest.mark.parametrize("kind", [LARS, LAMB])
@pytest.mark.parametrize("foreach", [None, False, True])
def test_a_rate_is_a_number_or_a_tensor_of_one_element_with_dimensions_or_without(kind, foreach):
    found = []
    for lr in (torch.tensor(0.125), torch.tensor([0.125]), 0.125):
        params = [*_two(torch.float64), torch.tensor(3.0, dtype=torch.float64).requires_grad_()]
        optimizer = kind(params, lr=lr, foreach=foreach)
        for _ in range(3):
            step(optimizer, params)
        found.append([parameter.detach() for parameter in params])
    assert all(map(torch.equal, *found[:2]))
    assert_close(found[0], found[2], 1e-6)
    assert not torch.equal(found[0][0], _two(torch.float64)[0])


def test_the_core_takes_any_layout_without_gaps():
    start = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(4))
    found = []
    for values in (start, start.contiguous(memory_format=torch.channels_last)):
        weight = torch.nn.Parameter(values.clone(memory_format=torch.preserve_format))
        optimizer = LARS([weight], weight_decay=0.1, fused=True)
        for _ in range(3):
            version = weight._version
            step(optimizer, [weight], [torch.full_like(weight, 0.5).add_(values)])
            assert weight._version > version  # so that autograd notices
        found.append(weight.detach())
        assert optimizer.state[weight]["momentum_buffer"].stride() == weight.stride()
    assert_close(found[:1], found[1:], 1e-6)


@pytest.mark.parametrize("way", [*WAYS[:2], {}], ids=str)
def test_a_momentum_in_16_bits_goes_on_in_32(way):
    layer = torch.nn.Linear(40, 30, bias=False).to(torch.bfloat16)
    optimizer = LARS(layer.parameters(), lr=0.1, **way)
    step(optimizer, [layer.weight])
    momentum = optimizer.state[layer.weight]["momentum_buffer"].float()
    layer.float()
    before = layer.weight.detach().clone()
    step(optimizer, [layer.weight], [torch.zeros_like(layer.weight)])
    assert_close([layer.weight.detach()], [before - 0.1 * 0.9 * momentum], 1e-4)


def test_memory_of_another_size_is_not_touched():
    weight = ones(4, 2)
    optimizer = LARS([weight], lr=1.0)
    step(optimizer, [weight])
    weight.data = torch.ones(40, 2)  # as if it had grown
    with pytest.raises(RuntimeError, match="size of tensor"):  # the gradient has not
        optimizer.step()
    weight.grad = torch.ones(40, 2)
    with pytest.raises(ValueError, match=r"momentum_buffer of shape \(4, 2\).* \(40, 2\)"):
        optimizer.step()
    del optimizer.state[weight]
    optimizer.step()
    assert optimizer.state[weight]["momentum_buffer"].shape == (40, 2)


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


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        *(
            (LARS, {name: value}, f"{name}={value} .expected a number >= 0")
            for name in ("lr", "momentum", "weight_decay", "eps")
            for value in (-0.1, np.nan)
        ),
        (LARS, {"momentum": 0.0, "nesterov": True}, r"nesterov=True with momentum=0\.0"),
        (LARS, {"trust_clamp": (2, 1)}, r"trust_clamp=\(2, 1\)"),
        (LARS, {"fused": True, "foreach": True}, "fused=True with foreach=True or"),
        (LARS, {"differentiable": True, "foreach": True}, "differentiable=True with foreach=True"),
        (LAMB, {"betas": (1.0, 0.9)}, r"betas=\(1.0, 0.9\)"),
        (LAMB, {"max_grad_norm": 0}, "max_grad_norm=0 .expected a number > 0, or None"),
        (LAMB, {"betas": (0.9,)}, r"betas=.* two"),
        (AdamSGD, {"betas": (0.9,)}, r"betas=.* two"),
        (AdamSGD, {"share": 2}, "share=2"),
    ],
)
def test_options_that_make_no_sense_are_refused(kind, options, text):
    with pytest.raises(ValueError, match=text):
        kind([ones(2, 2)], **options)
    optimizer = kind([ones(2, 2)])
    with pytest.raises(ValueError, match=text):
        optimizer.add_param_group({"params": [ones(1)], **options})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("kind", [LARS, LAMB, AdamSGD])
def test_what_is_no_group_or_no_state_is_refused(kind):
    optimizer = kind([{"params": [ones(2, 2)], "name": 5, "adapt": True}])  # names of others
    for group in ([ones(1)], {"params": [ones(1)], "lr": "1"}):
        with pytest.raises(TypeError, match=r"(?s)(param_group|lr)=.*expected a"):
            optimizer.add_param_group(group)
    for state in ({}, None, {"param_groups": []}):
        with pytest.raises((TypeError, ValueError), match=r"state_dict=.*'state'"):
            optimizer.load_state_dict(state)


@pytest.mark.parametrize(
    ("kind", "gradient", "text"),
    [
        (LARS, torch.ones(2, 2).to_sparse(), r"layout torch\.sparse_coo"),
        # Where squares are taken.
        (LAMB, torch.ones(2, 2, dtype=torch.complex64), r"complex64 .*view_as_real"),
        (AdamSGD, torch.ones(2, 2, dtype=torch.complex64), r"complex64 .*view_as_real"),
    ],
)
def test_gradients_that_no_step_takes_are_refused(kind, gradient, text):
    weight = torch.nn.Parameter(torch.ones(2, 2, dtype=gradient.dtype))
    with pytest.raises(ValueError, match=text):
        step(kind([weight]), [weight], [gradient])


def test_a_state_of_other_groups_is_refused():
    groups = [{"params": [one]} for one in _two()]
    with pytest.raises(ValueError, match="parameter groups"):
        LARS(_two()).load_state_dict(torch.optim.SGD(groups, lr=1.0).state_dict())


def test_interpolation():
    share = interpolation(10, 20)
    assert [share(number) for number in (0, 10, 15, 20, 99)] == [0, 0, 0.5, 1, 1]
    assert [interpolation(5, 5)(number) for number in (4, 5)] == [0, 1]
    with pytest.raises(ValueError, match="begin=3, end=2"):
        interpolation(3, 2)
    parameter = ones(1)
    optimizer = AdamSGD([parameter])
    optimizer.follow(lambda number: number + 0.5)
    step(optimizer, [parameter])
    with pytest.raises(ValueError, match=r"share=1\.5 in step 1 .expected from 0 to 1"):
        optimizer.step()


def test_linear_decay_with_warm_up():
    factors = [linear_factor(number, 4, 8, 0.2, 0.1) for number in range(10)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 0.775, 0.55, 0.325, 0.1, 0.1])
    optimizer = torch.optim.SGD([ones(1)], lr=2.0)
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


# --- what the core takes of a step; tests/gpu has those on a GPU

#: No machine has so many GPUs.
NO_GPU = 1000


def test_what_the_core_has_no_step_for_in_host_memory():
    weight = ones(2, 2)
    with pytest.raises(ValueError, match="fused=True with a tensor on cpu as lr and parameters on"):
        step(LARS([weight], lr=torch.tensor(0.1), fused=True), [weight])
    weight = ones(2, 2)
    optimizer = LAMB([weight], fused=True)
    said = r"fused=True with torch\.float32 on cpu .expected .* cuda"
    with pytest.raises(ValueError, match=said):
        step(optimizer, [weight])
    assert not optimizer.state[weight]  # as if nobody had called it


def test_a_gpu_that_is_not_there_has_no_kernels_and_sums_take_16_bytes_a_tensor():
    assert _core.optim_problem(NO_GPU).startswith("[")
    numbers = ("lr", "momentum", "dampening", "weight_decay", "trust_coefficient", "eps")
    flags = dict.fromkeys(("nesterov", "larc", "adapt", "first"), False)
    ratios = {"least_ratio": 0.0, "largest_ratio": 1.0}
    options = _core.LarsOptions(**dict.fromkeys(numbers, 0.1), **ratios, **flags)
    with pytest.raises((ValueError, aiacc.EngineError)):
        _core.lars_step_on_gpu([], options, device=NO_GPU, stream=0, lr=0, workspace=0)
    assert _core.optim_workspace_bytes(7) - _core.optim_workspace_bytes(0) == 7 * 16
