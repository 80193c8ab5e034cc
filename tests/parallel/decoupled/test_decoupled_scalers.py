"""Gradients that are not finite, of which each rank has a part: all ranks skip the same steps.

A GradScaler with and without clipping is in test_optimizer_situations.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from tests.parallel.decoupled.decoupled_training import loss, start, values, wrap
from tests.support.jobs import on_ranks
from tests.support.training import train


def _infinite(model, rank, batch):
    return loss(model, rank, batch) + model[0].weight[0, 0] * float("inf")


@pytest.mark.parametrize("order", [2.0, -1.0])
@on_ranks(2)
def test_a_scaler_after_clipping_that_failed_or_hid_infinity(order):
    """The norm of order -1 of what has infinity is finite: the scaler's own question finds it."""
    training = start()
    before = values(training.model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    training.backward(0, loss=_infinite, scaler=scaler)
    if order == 2.0:
        with pytest.raises(RuntimeError, match=r"norm of order 2.0 of the gradients is inf"):
            training.optimizer.clip_grad_norm_(1.0, error_if_nonfinite=True)
    else:
        assert training.clip(1.0, order).isfinite()
    training.step(scaler)
    assert scaler.get_scale() == 2.0
    assert all(map(torch.equal, training.model.parameters(), before))
    train(training, [1])
    assert all(bool(parameter.isfinite().all()) for parameter in training.model.parameters())


@on_ranks(2)
def test_large_gradients_are_finite():
    """A sum of one rank's elements overflows, and all of them are finite."""
    model = nn.Linear(64, 64, bias=False)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.0))
    factors = torch.zeros(64, 64)
    factors[:32] = 1e38  # in rank 0's half
    (model.weight * factors).sum().backward()
    optimizer.synchronize()
    given = [part.grad for part in optimizer.param_groups[0]["params"] if part.grad is not None]
    assert [float(part.max()) for part in given] == [pytest.approx([1e38, 0.0][hvd.rank()])]
