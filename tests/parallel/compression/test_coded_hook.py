"""DistributedDataParallel whose buckets travel coded."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import aiacc.torch as hvd
from aiacc.compression.codecs import parse
from aiacc.compression.feedback import EF21
from aiacc.compression.policy import Policy
from tests.support.coded import check_same, run_over_tcp


def _loss_after(compression, folder, steps=60):
    name = str(compression).partition(":")[0]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/{name}", rank=hvd.rank(), world_size=hvd.size()
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64, bias=False))
    model.register_comm_hook(hvd.HookState(compression=compression), hvd.allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(64, 64, generator=torch.Generator().manual_seed(hvd.rank())) / 8
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs).square().sum()
        loss.backward()
        optimizer.step()
    check_same(model.module.weight.detach().flatten())
    torch.distributed.destroy_process_group()
    return float(hvd.allreduce(loss.detach(), name=f"loss.{name}"))


def _hooks(folder):
    hvd.init()
    first = _loss_after("none", folder, steps=1)
    dense = _loss_after("bf16", folder)
    assert dense < first / 10
    # What the codes lose of gradients that get smaller is a part of them.
    assert _loss_after("int8", folder) < dense * 1.1
    assert _loss_after("mstopk:density=0.1", folder) < first / 10
    with pytest.raises(ValueError, match="ef21 of a hook"):
        hvd.HookState(compression=Policy(parse("int8"), feedback=EF21()))


def test_hooks(tmp_path):
    run_over_tcp(2, _hooks, str(tmp_path))
