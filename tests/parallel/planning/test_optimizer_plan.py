"""Optimizers that follow a plan of aiacc.planning."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.planning import planners
from aiacc.planning.cost import Affine
from aiacc.planning.plan import Plan
from aiacc.planning.trace import Tensor, Trace
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


class _InTurn(nn.Sequential):
    """Layers of two dtypes."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(*(nn.Linear(3, 3, dtype=_DTYPES[i % 2]) for i in range(4)))

    def forward(self, rows):
        for layer in self:
            rows = layer(rows.to(layer.weight.dtype))
        return rows.double()


_DTYPES = (torch.float64, torch.float32)


def _fuses_in_turn(view, of_one_dtype):
    torch.set_num_threads(1)
    hvd.init()
    alone, model = _InTurn(), _InTurn()
    expected = _train(alone, torch.optim.SGD(alone.parameters(), 0.1), 4, range(hvd.size()))
    parameters = list(model.named_parameters())[::-1]
    tensors = tuple(
        Tensor(name, p.nbytes, "float32" if of_one_dtype else str(p.dtype), 0.1 * i, 0.0)
        for i, (name, p) in enumerate(parameters)
    )
    trace = Trace("in turn", tensors, 0.0, 1.0, "measured")
    plan = planners.plan("threshold(25)", trace, Affine(0.1, 1e-9))
    optimizer = _wrap(model, plan, gradient_as_bucket_view=view)
    found = _train(model, optimizer, 4, [hvd.rank()])
    torch.testing.assert_close(found, expected)
    assert [len(bucket.members) for bucket in optimizer._reducer.buckets] == [4, 4]
    hvd.shutdown()


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("of_one_dtype", [False, True])
def test_buckets_of_dtypes_that_take_turns(view, of_one_dtype):
    """Whether the plan was made for them, or for a model of one dtype."""
    run_ranks(2, _fuses_in_turn, view, of_one_dtype)


def _differs():
    hvd.init()
    # One of the ranks has another plan than the others, or none.
    other = Plan("other", (("2.bias",), *PLAN.buckets[1:]))
    first = f"plan {PLAN.digest[:12]} of 2 buckets"
    for odd, text in (
        (other, f"plan {other.digest[:12]} of 2 buckets"),
        (None, "no plan"),
        ("auto", "plan='auto'"),
    ):
        who = (
            f"this one {first}, another",
            f"rank 0 {first}, this one {text}",
            "rank 0 and this one",
        )
        model = _net()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = _wrap(model, odd if hvd.rank() == 1 else PLAN)
        for _ in range(2):
            with pytest.raises(
                ValueError,
                match=f"given different plans, groups or buckets: {who[hvd.rank()]}.*"
                "; pass the same plan, loaded",
            ):
                _train(model, optimizer, 1, [hvd.rank()])
    model = _net()
    optimizer = _wrap(model, "auto", gradient_as_bucket_view=hvd.rank() == 1)
    asked = "plan='auto'" + " and gradient_as_bucket_view" * (hvd.rank() == 1)
    with pytest.raises(ValueError, match=f"this one {asked}( .expected|, another)"):
        _train(model, optimizer, 1, [hvd.rank()])
    hvd.shutdown()


def test_ranks_with_different_plans_are_told():
    run_ranks(3, _differs)


def _differs_in_both(joins):
    """Also while a rank has joined, to which nothing can be sent."""
    hvd.init()
    if hvd.rank() == 2 and joins:
        hvd.join()
        hvd.shutdown()
        return
    model = _net()
    plan, compression = ((PLAN, "int8"), (None, "none"), (PLAN, "int8"))[hvd.rank()]
    optimizer = _wrap(model, plan, compression=compression)
    asked = f"plan {PLAN.digest[:12]} of 2 buckets and Policy(int8)", "no plan and no codec"
    mine = f"this one {asked[hvd.rank() == 1]}"
    if not joins and hvd.rank() > 0:
        mine = f"rank 0 {asked[0]}, {mine}" if hvd.rank() == 1 else f"rank 0 and {mine}, another"
    text = f"given different plans, groups or buckets and compression: {mine}"
    with pytest.raises(ValueError, match=re.escape(text)):
        _train(model, optimizer, 1, [hvd.rank()])
    if joins:
        hvd.join()
    hvd.shutdown()


@pytest.mark.parametrize("joins", [False, True])
def test_ranks_that_differ_in_plan_and_compression_are_told_both(joins):
    run_ranks(3, _differs_in_both, joins)


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
        (Plan("x", (("0.weight", "head"),)), {}, "plan has 1 gradient that .* 'head' for one"),
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
