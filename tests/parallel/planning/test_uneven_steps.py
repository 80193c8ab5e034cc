"""Ranks that call `step` unequally often, and reduce equally often, as after errors on one."""

import os

import pytest
import torch

import aiacc.torch as hvd
from tests.parallel.planning.test_auto_plan import STEPS, check_same, net
from tests.support.jobs import join_as, on_ranks

#: Steps that the first rank ends in another way: some step, and those that end a phase.
_ODD = (3, 5, 12)


def _forward(model):
    return model(torch.ones(2, 8).double()).sum()


def _retries(model, optimizer, odd):
    """Nothing was reduced when the closure failed."""
    failing = [odd]

    def closure():
        if failing.pop():
            raise RuntimeError("no memory, say")
        optimizer.zero_grad()
        loss = _forward(model)
        loss.backward()
        return loss

    if odd:
        with pytest.raises(RuntimeError, match="no memory, say"):
            optimizer.step(closure)
        failing = [False]
    optimizer.step(closure)


def _refused(model, optimizer, odd, step=None, scale=lambda loss: loss):
    """All was reduced, but not to the liking of this rank, which leaves the batch out."""
    optimizer.zero_grad()
    scale(_forward(model)).backward()
    if odd:
        model[2].weight.grad.mul_(1.0)  # it has left
        with pytest.raises(ValueError, match="was written to between backward"):
            (step or optimizer.synchronize)()
    elif step is None:
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        step()


def _refused_in_step(model, optimizer, odd):
    _refused(model, optimizer, odd, optimizer.step)


def _refused_for_scaler(model, optimizer, odd):
    """The same where a scaler synchronises."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    _refused(model, optimizer, odd, lambda: scaler.step(optimizer), scaler.scale)


def _left_out(model, optimizer, odd):
    """What comes between the two calls fails here."""
    optimizer.zero_grad()
    _forward(model).backward()
    optimizer.synchronize()
    if not odd:
        with optimizer.skip_synchronize():
            optimizer.step()


_WAYS = _retries, _refused, _refused_in_step, _refused_for_scaler, _left_out


@pytest.mark.parametrize("arguments", [{"plan": "auto"}, {"compression": "auto"}, {}])
@on_ranks(2, starts=False)
def test_what_searches_or_is_profiled_counts_reductions(arguments, tmp_path):
    """Of a profile further optimizers have files of their own: net.2.json and so on."""
    os.environ["AIACC_PROFILE"] = "" if arguments else str(tmp_path / "net.json")
    join_as("ab" if arguments else "aa")
    for step in _WAYS:
        model = net()
        sgd = torch.optim.SGD(model.parameters(), 0.001)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), **arguments)
        for number in range(STEPS if "plan" in arguments else 30):
            step(model, optimizer, number in _ODD and hvd.rank() == 0)
        check_same(optimizer.buckets)
        if "plan" in arguments:
            assert optimizer.plan_phase == "watch"
    hvd.barrier()
    files = ["net.2.json", "net.3.json", "net.4.json", "net.5.json", "net.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ([] if arguments else files)
