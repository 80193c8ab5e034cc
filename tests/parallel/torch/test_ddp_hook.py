"""The communication hook for DistributedDataParallel, against DistributedDataParallel itself."""

from __future__ import annotations

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import aiacc
import aiacc.torch as hvd
from tests.support.jobs import on_ranks
from tests.support.process_group import leave
from tests.support.sizes import TWO_AND_THREE


def _net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))


def _trained(hooked, state=None, **options):
    model = DistributedDataParallel(_net(), bucket_cap_mb=0.001, **options)
    if hooked:
        model.register_comm_hook(state, hvd.allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(5):
        optimizer.zero_grad()
        torch.manual_seed(100 * step + hvd.rank())
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def _two_models_in_one_pass():
    models = [DistributedDataParallel(_net()) for _ in range(2)]
    for model in models:
        model.register_comm_hook(None, hvd.allreduce_hook)
    for step in range(3):
        torch.manual_seed(100 * step + hvd.rank())
        batch = torch.randn(4, 8)
        (models[0](batch).sum() + 2 * models[1](batch).sum()).backward()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(2 * one.grad, other.grad)


def _failure_reaches_the_caller():
    model = DistributedDataParallel(_net())
    model.register_comm_hook(None, hvd.allreduce_hook)
    loss = model(torch.ones(1, 8)).sum()
    hvd.shutdown()
    with pytest.raises(RuntimeError, match=r"initialized|shut"):
        loss.backward()


@on_ranks(*TWO_AND_THREE)
def test_same_parameters_as_plain_ddp(port):
    distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", rank=hvd.rank(), world_size=hvd.size()
    )
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        expected = _trained(False, **options)
        before = aiacc.stats()["tensors"]
        torch.testing.assert_close(_trained(True, **options), expected)
        assert aiacc.stats()["tensors"] >= before + 5
    torch.testing.assert_close(_trained(True, hvd.global_process_set), expected)
    _two_models_in_one_pass()
    distributed.barrier()
    _failure_reaches_the_caller()
    leave()
