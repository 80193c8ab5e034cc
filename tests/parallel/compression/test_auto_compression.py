"""compression="auto": a job that finds out what codecs save."""

import os

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc.compression.codecs import Cast
from tests.support.coded import check_same
from tests.support.ranks import run_ranks

_STEPS = 60


def _train(hosts, pace):
    """Train as rank number AIACC_RANK of a job whose rank r is on host ``hosts[r]``."""
    rank = int(os.environ["AIACC_RANK"])
    os.environ["AIACC_LOCAL_RANK"] = str(hosts[:rank].count(hosts[rank]))
    os.environ["AIACC_LOCAL_SIZE"] = str(hosts.count(hosts[rank]))
    os.environ["AIACC_TEST_PACE_BYTES"] = str(pace)
    hvd.init()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(160, 160) for _ in range(4)])
    start = model[0].weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters(), compression="auto"
    )
    torch.manual_seed(1 + rank)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 160)).square().mean().backward()
        optimizer.step()
    assert not torch.equal(start, model[0].weight)
    check_same(torch.cat([p.detach().flatten() for p in model.parameters()]))
    optimizer.feedback.flush()
    optimizer.zero_grad()
    model(torch.randn(8, 160)).square().mean().backward()
    optimizer.step()
    assert all(not residual.any() for residual in optimizer.feedback.residuals.values())
    return str(optimizer.feedback.policy.codec)


@pytest.mark.parametrize("hosts", ["ab", "aabb"])
def test_ranks_choose_alike(hosts):
    chosen = run_ranks(len(hosts), _train, hosts, 4_000_000)
    assert len(set(chosen)) == 1


def test_nothing_is_coded_on_one_host():
    assert run_ranks(2, _train, "aa", 0) == ["none", "none"]


def _refused():
    hvd.init()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="compression='auto' with plan, groups"):
        hvd.DistributedOptimizer(optimizer, compression="auto", groups=2)
    feedback = hvd.DistributedOptimizer(optimizer, compression="auto").feedback
    assert isinstance(feedback.policy.codec, Cast)


def test_buckets_of_the_user_are_refused():
    run_ranks(1, _refused, launcher="python")
