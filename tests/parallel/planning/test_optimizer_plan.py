"""Optimizers that follow a plan of aiacc.planning."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.planning.plan import Plan
from tests.support.ranks import run_ranks

PLAN = Plan("mine", (("2.bias", "2.weight", "1.bias"), ("1.weight", "0.bias", "0.weight")))


def _net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3).double() for _ in range(3)))


def _train(model, optimizer, steps, ranks):
    for step in range(steps):
        optimizer.zero_grad()
        for rank in ranks:
            generator = torch.Generator().manual_seed(100 * step + rank)
            batch = torch.randn(4, 3, generator=generator, dtype=torch.float64)
            (model(batch).pow(2).mean() / len(ranks)).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def _wrap(model, plan, **arguments):
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return hvd.DistributedOptimizer(sgd, model.named_parameters(), plan=plan, **arguments)


def _follows(view):
    torch.set_num_threads(1)
    hvd.init()
    alone = _net()
    sgd = torch.optim.SGD(alone.parameters(), 0.1)
    expected = _train(alone, sgd, 4, range(hvd.size()))
    model = _net()
    optimizer = _wrap(model, PLAN, gradient_as_bucket_view=view)
    found = _train(model, optimizer, 4, [hvd.rank()])
    torch.testing.assert_close(found, expected)
    names = optimizer._reducer._gradients.names
    buckets = [
        tuple(names[index] for index in bucket.members) for bucket in optimizer._reducer.buckets
    ]
    assert [set(bucket) for bucket in buckets] == [set(bucket) for bucket in PLAN.buckets]
    hvd.shutdown()


@pytest.mark.parametrize("view", [False, True])
def test_the_buckets_of_a_plan_give_the_same_training(view):
    run_ranks(2, _follows, view)


def _differs():
    hvd.init()
    # One of the ranks has another plan than the others, or none.
    for odd in (Plan("other", (("2.bias",), *PLAN.buckets[1:])), None, "auto"):
        model = _net()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = _wrap(model, odd if hvd.rank() == 1 else PLAN)
        for _ in range(2):
            with pytest.raises(
                ValueError, match="given different plans, groups, buckets or codecs"
            ):
                _train(model, optimizer, 1, [hvd.rank()])
    model = _net()
    optimizer = _wrap(model, "auto", gradient_as_bucket_view=hvd.rank() == 1)
    asked = "plan='auto'" + " and gradient_as_bucket_view" * (hvd.rank() == 1)
    with pytest.raises(ValueError, match=f"this one {asked} .expected"):
        _train(model, optimizer, 1, [hvd.rank()])
    hvd.shutdown()


def test_ranks_with_different_plans_are_told():
    run_ranks(3, _differs)


def _leaves_out():
    hvd.init()
    alone = _net()
    sgd = torch.optim.SGD(alone.parameters(), 0.1)
    expected = _train(alone, sgd, 3, range(hvd.size()))
    model = _net()
    with pytest.warns(UserWarning, match="plan leaves out 3 of 6 parameters, '0.weight' for one"):
        optimizer = _wrap(model, Plan("half", PLAN.buckets[:1]))
    torch.testing.assert_close(_train(model, optimizer, 3, [hvd.rank()]), expected)
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is frozen has no gradient to plan
        _wrap(model, Plan("half", PLAN.buckets[:1]))
    hvd.shutdown()


def test_what_a_plan_leaves_out_goes_by_itself():
    run_ranks(2, _leaves_out)


def _refuses():
    hvd.init()
    model = _net()
    for plan, arguments, text in (
        (Plan("x", (("0.weight", "head"),)), {}, "plan has 1 gradients .* 'head' for one"),
        (Plan("x", PLAN.buckets, schedule="decoupled"), {}, "plan with schedule 'decoupled'"),
        (PLAN, {"groups": 2}, "plan and groups are given"),
        (Path("plan.json"), {}, r"plan=PosixPath\('plan.json'\) \(expected a Plan"),
        ({"buckets": []}, {"schedule": "decoupled"}, r"plan={'buckets': \[\]} \(expected a Plan"),
        (PLAN, {"op": hvd.Adasum}, "op=Adasum with groups, a plan"),
    ):
        with pytest.raises(ValueError, match=text):
            _wrap(model, plan, **arguments)
    hvd.shutdown()


def test_plans_that_cannot_be_followed():
    run_ranks(1, _refuses)
