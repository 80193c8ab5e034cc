"""Gradients as products of thin matrices, between ranks, and beside torch's own PowerSGD."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import aiacc
import aiacc.torch as hvd
from aiacc.compression.codecs import PowerSGD
from aiacc.compression.policy import Policy
from tests.support.coded import check_same, coding_optimizer, run_over_tcp
from tests.support.process_group import leave

_POLICY = Policy(PowerSGD(rank=2), least_elements=64, dense_steps=2)


def _inputs(step, rank):
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(10 * step + rank))


def _step(model, optimizer, step):
    optimizer.zero_grad()
    model(_inputs(step, hvd.rank())).pow(3).mean().backward()
    optimizer.step()


def _like_torchs(folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=hvd.rank(), world_size=hvd.size()
    )
    _steps_like_torchs()
    leave()


def _steps_like_torchs():
    """Both begin with the same factor, so they find the same approximations, up to rounding."""
    torch.manual_seed(0)
    model = nn.Linear(24, 40, bias=False)
    theirs = DistributedDataParallel(copy.deepcopy(model))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    optimizer = coding_optimizer(model, _POLICY, op=hvd.Average)
    optimizer.feedback.factors["weight"] = factor = torch.randn(24, 2)
    state.p_memory_dict[0] = torch.zeros(40 * 2)
    state.q_memory_dict[0] = factor.flatten().clone()
    theirs.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(8):
        theirs.zero_grad()
        theirs(_inputs(step, hvd.rank())).pow(3).mean().backward()
        _step(model, optimizer, step)
        check_same(model.weight.grad)
        torch.testing.assert_close(
            model.weight.grad, theirs.module.weight.grad, rtol=1e-3, atol=1e-4
        )
        assert torch.linalg.matrix_rank(model.weight.grad) <= (24 if step < 2 else 2)


def _continued():
    """A state has the factors, too, and all goes on bit for bit."""

    def fresh():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 40))
        return model, coding_optimizer(model, _POLICY, lr=0.1, op=hvd.Average)

    model, optimizer = fresh()
    for step in range(4):
        _step(model, optimizer, step)
    saved = copy.deepcopy((model.state_dict(), optimizer.feedback.state_dict()))
    results = []
    for again in (False, True):
        if again:
            model, optimizer = fresh()
            model.load_state_dict(saved[0])
            optimizer.feedback.load_state_dict(saved[1])
        for step in range(4, 7):
            _step(model, optimizer, step)
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*results)
    check_same(results[0])


def _errors():
    with pytest.raises(ValueError, match=r"powersgd of an operation .*DistributedOptimizer"):
        hvd.allreduce(torch.ones(4), compression="powersgd")
    with pytest.raises(ValueError, match=r"powersgd of a hook .*powerSGD_hook"):
        hvd.HookState(compression="powersgd")
    model = nn.Linear(24, 40)
    optimizer = coding_optimizer(
        model, Policy(PowerSGD(rank=1 + hvd.rank()), least_elements=64), op=hvd.Average
    )
    with pytest.raises(aiacc.MismatchError, match=r"weight.*shape \[40\].*shape \[80\]"):
        _step(model, optimizer, 0)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def _all(folder):
    hvd.init()
    _like_torchs(folder)
    _continued()
    _errors()
    hvd.shutdown()


def test_power_sgd(tmp_path):
    run_over_tcp(2, _all, str(tmp_path))
