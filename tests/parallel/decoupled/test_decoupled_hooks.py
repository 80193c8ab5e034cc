"""Hooks of others on the gradients of parameters."""

from __future__ import annotations

import pytest
import torch

import aiacc.torch as hvd
from tests.parallel.decoupled.decoupled_training import loss, net, wrap
from tests.support.ranks import run_ranks


def _dropped_by_a_hook(later):
    """A hook drops a gradient on rank 0, before that leaves: it was there before ours, or after."""
    torch.set_num_threads(1)
    hvd.init()
    model = net()
    dropped = model[4].weight  # of which rank 1 has a part
    drops = [False]

    def drop(parameter):
        if drops[0]:
            parameter.grad = None

    if not later:
        dropped.register_post_accumulate_grad_hook(drop)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = wrap(model, sgd, op=hvd.Sum, bucket_bytes=1 << 20)  # one bucket
    if later:
        dropped.register_post_accumulate_grad_hook(drop)
    for step in range(4):
        drops[:] = [step == 2 and hvd.rank() == 0]
        before = dropped.detach().clone()
        gradients = [torch.autograd.grad(loss(model, step, r), dropped)[0] for r in range(2)]
        optimizer.zero_grad()
        loss(model, step, hvd.rank()).backward()
        optimizer.step()
        optimizer.flush()
        given = gradients[1] if step == 2 else sum(gradients)
        alike = torch.isclose(dropped, before - 0.1 * given)
        unchanged = dropped == before  # rank 0 wants its part so
        assert (alike | unchanged).all()
        assert alike.any()
        assert step == 2 or alike.all()
    hvd.shutdown()


@pytest.mark.parametrize("later", [False, True])
def test_what_another_hook_drops_counts_as_zeros(later):
    run_ranks(2, _dropped_by_a_hook, later)
