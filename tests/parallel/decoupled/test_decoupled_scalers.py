"""Gradients that are not finite, of which each rank has a part: all ranks skip the same steps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from tests.parallel.decoupled.decoupled_training import begin, check_equal, loss, net, train, wrap
from tests.support.ranks import run_ranks

_BAD = 2  # the step whose gradients are not finite in rank 0's part only


def _clipped(optimizer, scaler, max_norm, norm_type, unscales):
    """Clip and step, in the words of either schedule."""
    limit = max_norm * scaler.get_scale()
    if hasattr(optimizer, "clip_grad_norm_"):
        norm = optimizer.clip_grad_norm_(limit, norm_type)
    else:
        optimizer.synchronize()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit, norm_type)
    if unscales:
        scaler.unscale_(optimizer)
    if unscales or not hasattr(optimizer, "clip_grad_norm_"):
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
    else:
        scaler.step(optimizer)
    scaler.update()
    return norm


def _skips_alike(bad, norm_type, unscales):
    models, scales = (net(), net()), []
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), schedule)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
        for step in range(5):
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.zero_grad()
            value = scaler.scale(loss(model, step, hvd.rank()))
            if (step, hvd.rank()) == (_BAD, 1):
                value = value + model[0].weight[0, 0] * bad
            value.backward()
            norm = _clipped(optimizer, scaler, 0.02, norm_type, unscales)
            assert bool(norm.isfinite()) == (step != _BAD)
            same = [torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
            assert same == [step == _BAD] * len(same)
        scales.append(scaler.get_scale())
    assert scales == [2.0, 2.0]
    for found, expected in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(found, expected)  # norms are added up in another order
    check_equal(models[1], models[1])  # on all ranks


def _clips_before_it_scales(unscales):
    torch.set_num_threads(1)
    hvd.init()
    for bad, norm_type in (("inf", 2.0), ("nan", 2.0), ("inf", float("inf"))):
        _skips_alike(float(bad), norm_type, unscales)
    hvd.shutdown()


@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaler_after_clipping_skips_as_with_the_other_schedule(unscales):
    run_ranks(2, _clips_before_it_scales, unscales)


def _infinite(model):
    """Does a backward pass with infinity in it; the scaler of its loss."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    value = scaler.scale(loss(model, 0, hvd.rank())) + model[0].weight[0, 0] * float("inf")
    value.backward()
    return scaler


def _check_skipped(scaler, optimizer, model, before):
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0
    for found, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(found, old)


def _caught():
    """Who catches the error of a norm that is not finite may go on with the scaler."""
    model, optimizer = begin()
    before = [p.detach().clone() for p in model.parameters()]
    scaler = _infinite(model)
    with pytest.raises(RuntimeError, match=r"norm of order 2.0 of the gradients is inf"):
        optimizer.clip_grad_norm_(1.0, error_if_nonfinite=True)
    _check_skipped(scaler, optimizer, model, before)
    train(model, optimizer, [1])
    optimizer.flush()
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    hvd.shutdown()


def test_a_scaler_after_the_error_of_clipping():
    run_ranks(2, _caught)


def _orders_that_hide_infinity():
    """The norm of order -1 of what has infinity is finite: the scaler's own question finds it."""
    model, optimizer = begin()
    before = [p.detach().clone() for p in model.parameters()]
    scaler = _infinite(model)
    assert optimizer.clip_grad_norm_(1.0, -1.0).isfinite()
    _check_skipped(scaler, optimizer, model, before)
    hvd.shutdown()


def test_a_scaler_after_a_norm_that_hides_infinity():
    run_ranks(2, _orders_that_hide_infinity)


def _large():
    """A sum of one rank's elements overflows, and all of them are finite."""
    torch.set_num_threads(1)
    hvd.init()
    model = nn.Linear(64, 64, bias=False)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.0))
    factors = torch.zeros(64, 64)
    factors[:32] = 1e38  # in rank 0's half
    (model.weight * factors).sum().backward()
    optimizer.synchronize()
    largest = [float(gradient.max()) for gradient in optimizer._shards.gradients()]
    hvd.shutdown()
    return largest


def test_large_gradients_are_finite():
    found = run_ranks(2, _large)
    assert found == [[pytest.approx(1e38)], [0.0]]
