"""DistributedOptimizer in a process set: as a single process with the data of its members."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import aiacc
import aiacc.torch as hvd
from tests.parallel.test_process_sets import JOBS
from tests.support.ranks import run_ranks


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def _loss(model, rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    batch = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return model(batch).pow(2).mean()


def _trained(model, optimizer, loss):
    for step in range(4):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _train_in_sets(engine):
    torch.set_num_threads(1)
    hvd.init()
    assert aiacc.basics.engine() == engine
    rank = hvd.rank()
    # Overlapping sets train at the same time as all ranks do.
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 2], [1, 2], [0])]
    for process_set in (*sets, hvd.global_process_set):
        if not process_set.included():
            continue
        members = process_set.ranks
        model, alone = _net(), _net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), 0.1),
            model.named_parameters(),
            process_set=process_set,
        )
        ours = _trained(model, optimizer, lambda net, step: _loss(net, rank, step))
        expected = _trained(
            alone,
            torch.optim.Adam(alone.parameters(), 0.1),
            lambda net, step, members=members: sum(
                _loss(net, member, step) / len(members) for member in members
            ),
        )
        torch.testing.assert_close(ours, expected)
    for process_set in sets:
        assert hvd.remove_process_set(process_set)
    hvd.shutdown()


@pytest.mark.parametrize(("size", "launcher", "env", "engine"), [JOBS[0], JOBS[-1]])
def test_training_in_overlapping_sets(size, launcher, env, engine):
    run_ranks(size, _train_in_sets, engine, launcher=launcher, env=env)


def _train_in_sets_with_new_numbers(kind):
    """The numbers of the two sets change places with each `init`, and the second is late."""
    torch.set_num_threads(1)
    pairs = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])]
    options = {"groups": {"groups": 2}, "buckets": {"gradient_as_bucket_view": True}}.get(kind, {})
    for life in range(3):
        late = pairs if life == 2 else []
        hvd.init(process_sets=[] if late else pairs[::-1] if life else pairs)
        for process_set in late:
            hvd.add_process_set(process_set)
        if life == 0:
            models = [_net() for _ in pairs]
            optimizers = [
                hvd.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), 0.1), process_set=process_set, **options
                )
                for model, process_set in zip(models, pairs, strict=True)
            ]
        for process_set, model, optimizer in zip(pairs, models, optimizers, strict=True):
            if process_set.included():
                _trained(model, optimizer, lambda net, step: _loss(net, hvd.rank(), step))
        mine = [process_set.included() for process_set in pairs]
        hvd.barrier()
        hvd.shutdown()
    for process_set, model, included in zip(pairs, models, mine, strict=True):
        if included:
            alone = _net()
            optimizer = torch.optim.SGD(alone.parameters(), 0.1)
            for _ in range(3):
                _trained(
                    alone,
                    optimizer,
                    lambda net, step, members=process_set.ranks: sum(
                        _loss(net, member, step) / len(members) for member in members
                    ),
                )
            for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["plain", "groups", "buckets"])
def test_sets_may_change_their_numbers(kind):
    run_ranks(3, _train_in_sets_with_new_numbers, kind)
