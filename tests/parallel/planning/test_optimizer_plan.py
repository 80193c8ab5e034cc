"""Optimizers that follow a plan of aiacc.planning."""

import re
import warnings
from functools import partial

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.planning.plan import Plan
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    Recipe,
    Together,
    compare,
    distributed,
    squares,
    together,
    train,
)

PLAN = Plan("mine", (("2.bias", "2.weight", "1.bias"), ("1.weight", "0.bias", "0.weight")))


def _net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3).double() for _ in range(3)))


NET = Recipe(_net, partial(torch.optim.SGD, lr=0.1), squares(4, 3))
STEPS = partial(train, batches=range(4))


@on_ranks(3)
def test_ranks_with_different_plans_are_told():
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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = together(NET, plan=odd if hvd.rank() == 1 else PLAN)
        told = f"given different plans, groups or buckets: {who[hvd.rank()]}.*"
        for _ in range(2):
            training.refused(STEPS, f"{told}; pass the same plan, loaded")
    training = together(NET, plan="auto", gradient_as_bucket_view=hvd.rank() == 1)
    asked = "plan='auto'" + " and gradient_as_bucket_view" * (hvd.rank() == 1)
    training.refused(STEPS, f"this one {asked}( .expected|, another)")

    # Groups of the same shapes, which operations cannot tell apart.
    model = _net()
    ends = (model[:2], model[1::-1])[hvd.rank() == 1]
    groups = [[one.weight, other.bias] for one, other in zip(model[:2], ends, strict=True)]
    training = Together(
        model, distributed(model, NET.make_optimizer(model.parameters()), groups=groups), NET.loss
    )
    training.refused(STEPS, "given different plans, groups or buckets: .*2 groups of names with")


@pytest.mark.parametrize("joins", [False, True])
@on_ranks(3)
def test_ranks_that_differ_in_plan_and_compression_are_told_both(joins):
    """Also while a rank has joined, to which nothing can be sent."""
    if hvd.rank() == 2 and joins:
        hvd.join()
        return
    plan, compression = ((PLAN, "int8"), (None, "none"), (PLAN, "int8"))[hvd.rank()]
    training = together(NET, plan=plan, compression=compression)
    asked = f"plan {PLAN.digest[:12]} of 2 buckets and Policy(int8)", "no plan and no codec"
    mine = f"this one {asked[hvd.rank() == 1]}"
    if not joins and hvd.rank() > 0:
        mine = f"rank 0 {asked[0]}, {mine}" if hvd.rank() == 1 else f"rank 0 and {mine}, another"
    text = f"given different plans, groups or buckets and compression: {mine}"
    training.refused(STEPS, re.escape(text))
    if joins:
        hvd.join()


@on_ranks(2)
def test_what_a_plan_leaves_out_goes_by_itself():
    half = Plan("half", PLAN.buckets[:1])
    with pytest.warns(UserWarning, match="plan leaves out 3 of 6 parameters, '0.weight' for one"):
        compare(STEPS, NET, plan=half)
    model = _net()
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is frozen has no gradient to plan
        distributed(model, NET.make_optimizer(model.parameters()), plan=half)
