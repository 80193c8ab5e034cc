"""Parameters that are frozen after some coded steps: what was kept of them does not change them."""

from __future__ import annotations

import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.compression.codecs import parse
from aiacc.compression.feedback import EF21, Momentum, Residual
from aiacc.compression.policy import Policy
from tests.support.coded import check_same, coding_optimizer, run_over_tcp

_TOPK = parse("topk:density=0.05")
_POLICIES = (
    Policy(_TOPK, least_elements=1, feedback=Residual(beta=0.5)),
    Policy(_TOPK, least_elements=1, feedback=Momentum()),
    Policy(_TOPK, least_elements=1, feedback=EF21()),
    Policy(parse("randomk:density=0.05"), least_elements=1),
    Policy(parse("powersgd:rank=2"), least_elements=1),
)


def _trained(policy, options):
    torch.manual_seed(0)
    first = nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last)
    model = nn.Sequential(first, nn.Flatten(), nn.Linear(64, 64))
    optimizer = coding_optimizer(model, policy, 0.01, **options)
    generator = torch.Generator().manual_seed(hvd.rank())

    def steps(count, set_to_none=True):
        for _ in range(count):
            optimizer.zero_grad(set_to_none)
            model(torch.randn(4, 8, 4, 4, generator=generator)).pow(2).mean().backward()
            optimizer.step()
            check_same(first.weight.detach())
            check_same(model[2].weight.detach())

    return first, optimizer, steps


def _kept(optimizer):
    kept = optimizer.feedback.state_dict()["kept"].items()
    return {kind: of["0.weight"] for kind, of in kept if "0.weight" in of}


def _frozen_everywhere(policy, options):
    first, optimizer, steps = _trained(policy, options)
    steps(3)
    first.requires_grad_(False)
    weight, kept = first.weight.clone(), _kept(optimizer)
    steps(2)
    steps(2, set_to_none=False)
    assert torch.equal(first.weight, weight), (policy, options)
    torch.testing.assert_close(_kept(optimizer), kept, rtol=0, atol=0)
    optimizer.feedback.flush()
    steps(1)
    assert torch.equal(first.weight, weight), (policy, options)
    assert not optimizer.feedback.residuals["0.weight"].any()
    first.requires_grad_(True)
    steps(2)
    assert not torch.equal(first.weight, weight)


def _frozen_on_one_rank(policy, options):
    first, _, steps = _trained(policy, options)
    steps(2)
    first.requires_grad_(hvd.rank() == 1)
    weight = first.weight.detach().clone()
    steps(3)
    assert not torch.equal(first.weight, weight)
    first.requires_grad_(True)
    steps(2)


def _frozen():
    hvd.init()
    for policy in _POLICIES:
        for options in ({}, {"gradient_as_bucket_view": True}, {"groups": 1}):
            _frozen_everywhere(policy, options)
            _frozen_on_one_rank(policy, options)
    hvd.shutdown()


def test_what_is_kept_of_frozen_parameters_waits():
    run_over_tcp(2, _frozen)
