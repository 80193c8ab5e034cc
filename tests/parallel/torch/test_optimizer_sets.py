"""DistributedOptimizer in a process set: as a single process with the data of its members."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from torch import nn

import aiacc
import aiacc.torch as hvd
from tests.support.jobs import on_ranks, over
from tests.support.learning.training import (
    Alone,
    Recipe,
    Together,
    check_learned,
    compare,
    distributed,
    train,
)


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def _loss(model, rank, batch):
    generator = torch.Generator().manual_seed(100 * batch + rank)
    rows = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return model(rows).pow(2).mean()


def _sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


@on_ranks(3, ways=over("tcp", "mpi"))
def test_training_in_overlapping_sets():
    assert aiacc.basics.engine() == os.environ["AIACC_ENGINE"]
    # Overlapping sets train at the same time as all ranks do.
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 2], [1, 2], [0])]
    adam = Recipe(_net, lambda parameters: torch.optim.Adam(parameters, 0.1), _loss)
    for process_set in (*sets, hvd.global_process_set):
        if process_set.included():
            compare(partial(train, batches=range(4)), adam, process_set=process_set)
    for process_set in sets:
        assert hvd.remove_process_set(process_set)


@pytest.mark.parametrize("options", [{}, {"groups": 2}, {"gradient_as_bucket_view": True}])
@on_ranks(3, starts=False)
def test_sets_may_change_their_numbers(options):
    """The numbers of the two sets change places with each `init`, and the second is late."""
    torch.set_num_threads(1)
    pairs = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2])]
    for life in range(3):
        late = pairs if life == 2 else []
        hvd.init(process_sets=[] if late else pairs[::-1] if life else pairs)
        for process_set in late:
            hvd.add_process_set(process_set)
        if life == 0:
            models = [_net() for _ in pairs]
            optimizers = [
                distributed(model, _sgd(model.parameters()), process_set=process_set, **options)
                for model, process_set in zip(models, pairs, strict=True)
            ]
        for process_set, model, optimizer in zip(pairs, models, optimizers, strict=True):
            if process_set.included():
                train(Together(model, optimizer, _loss), range(4))
        mine = [process_set.included() for process_set in pairs]
        hvd.barrier()
        hvd.shutdown()
    for process_set, model, included in zip(pairs, models, mine, strict=True):
        if included:
            alone = Alone(other := _net(), _sgd(other.parameters()), _loss, process_set.ranks)
            train(alone, [*range(4)] * 3)
            check_learned(model, alone.model, exactly=True)
