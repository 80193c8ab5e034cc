"""Factors travel while the passes run, as the timeline shows, and together as a plan says."""

from __future__ import annotations

import json
import time

import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.torch.kfac import buckets
from tests.parallel.kfac.kfac_training import in_job
from tests.support.jobs import on_ranks
from tests.support.ranks import run_ranks

LAYERS, STEPS = 3, 3


class _Wait(torch.autograd.Function):
    """Does nothing, but waits in its backward pass."""

    @staticmethod
    def forward(ctx, tensor, wait):
        ctx.wait = wait
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.wait()
        return gradient, None


def _prepared(model, **options):
    hvd.broadcast_parameters(model.state_dict(), 0)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    return optimizer, hvd.KFAC(model, optimizer, factor_every=1, inverse_every=1, **options)


@in_job
def _train():
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))
    optimizer, kfac = _prepared(layers, fusion="threshold", distribution="replicate")
    started, start, ends = [], buckets.allreduce_async_, []

    def recorded(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    buckets.allreduce_async_ = recorded

    def arrived():
        """Wait in the backward pass until the factors of the forward pass are reduced."""
        if not ends:
            return  # in the first step nothing leaves before the ranks have agreed
        while not hvd.poll(started[-1]):
            time.sleep(1e-4)

    for _ in range(STEPS):
        optimizer.zero_grad()
        found = torch.randn(4, 8)
        for layer in layers:
            found = layer(found)
        _Wait.apply(found, arrived).pow(2).sum().backward()
        ends.append(time.monotonic() * 1e6)
        kfac.step()
        optimizer.step()
    return ends


def test_factors_of_the_forward_pass_are_reduced_during_the_backward_pass(tmp_path):
    path = tmp_path / "t.json"
    ends = run_ranks(2, _train, env={"AIACC_TIMELINE": str(path)})[0]
    events = json.loads(path.read_text())
    ours = [one for one in events if ".factors." in one.get("name", "")]
    reduced = sorted(one["ts"] + one["dur"] for one in ours if one["cat"] == "ALLREDUCE")
    assert reduced[0] > ends[0]  # where both buckets may be one unit
    later = reduced[-2 * (STEPS - 1) :]
    assert later[0] > reduced[0]
    for step in range(1, STEPS):
        a, g = later[2 * step - 2 : 2 * step]
        assert ends[step - 1] < a < ends[step]
        assert a < g


def _train_by(fusion, kind, steps=8):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(LAYERS))).double()
    optimizer, kfac = _prepared(model, distribution=kind, fusion=fusion)
    for step in range(steps):
        optimizer.zero_grad()
        torch.manual_seed(hvd.size() * step + hvd.rank())
        model(torch.randn(4, 8).double()).pow(2).mean().backward()
        kfac.step()
        optimizer.step()
    kfac.detach()
    return model, kfac.report().together, optimizer


@on_ranks(2)
def test_a_plan_of_recorded_steps_fuses_factors_and_gradients_and_changes_no_result():
    for kind in ("replicate", "mpd", "spd"):
        model, together, optimizer = _train_by("optimal", kind)
        assert sorted(name for names in together for name in names) == sorted(
            f"{layer} {side}" for layer in range(LAYERS) for side in "AG"
        )
        assert hvd.allgather(torch.tensor([len(together)])).unique().numel() == 1
        assert not optimizer.unplanned  # gradients follow the same plan
        for fusion in ("threshold", "bulk"):
            other, _, plain = _train_by(fusion, kind)
            assert len(plain.unplanned) == 2 * LAYERS
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(one, two)
