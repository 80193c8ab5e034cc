"""Adasum against its definition: a tree of pairs, tensor by tensor."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import aiacc.array
import aiacc.torch as hvd
from tests.support.jobs import on_ranks
from tests.support.learning.training import distributed, flat, squares


def _tree(tensors):
    """What ranks with these tensors get."""
    if len(tensors) == 1:
        return tensors[0]
    a, b = _tree(tensors[: len(tensors) // 2]), _tree(tensors[len(tensors) // 2 :])
    product, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - product / (2 * of_a)) * a + (1 - product / (2 * of_b)) * b


def _inputs(count, seed=0):
    """The tensor of every rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, generator=generator, dtype=torch.float64) for _ in range(hvd.size())]


@on_ranks(1, 2, 4)
def test_operations():
    rank = hvd.rank()
    for count in (1, 7, 1000, 300_000):
        inputs = _inputs(count, seed=count)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
            mine = inputs[rank].to(dtype, copy=True)
            torch.testing.assert_close(hvd.allreduce(mine, op=hvd.Adasum), _tree(inputs), **close)
            scaled = hvd.allreduce(mine, op=hvd.Adasum, prescale_factor=4, postscale_factor=0.5)
            torch.testing.assert_close(scaled, 2 * _tree(inputs), **close)
            assert hvd.allreduce_(mine, op=hvd.Adasum) is mine
            torch.testing.assert_close(mine, _tree(inputs), **close)
    many = [_inputs(count, seed=count) for count in (3, 50, 70_000)]
    results = hvd.grouped_allreduce([inputs[rank] for inputs in many], op=hvd.Adasum)
    for inputs, result in zip(many, results, strict=True):
        torch.testing.assert_close(result, _tree(inputs))
    result = aiacc.array.allreduce(many[1][rank].numpy(), op=aiacc.array.Adasum)
    np.testing.assert_allclose(result, _tree(many[1]).numpy())
    with pytest.raises(ValueError, match=r"int32 \(expected a floating-point dtype"):
        hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)


_loss = squares(8, 6)


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def _train(model, optimizer, rank, step, passes):
    optimizer.zero_grad()
    for number in range(passes):
        _loss(model, rank, passes * step + number).backward()
    optimizer.step()


def _changes_alone(make, passes):
    """Every rank's optimizer steps on a copy of its own; its changes are combined."""
    models = [_model() for _ in range(hvd.size())]
    optimizers = [make(model.parameters()) for model in models]
    for step in range(4):
        starts = [parameter.detach().clone() for parameter in models[0].parameters()]
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            _train(model, optimizer, rank, step, passes)
        for start, *of_ranks in zip(starts, *(m.parameters() for m in models), strict=True):
            combined = start + _tree([parameter.detach() - start for parameter in of_ranks])
            for parameter in of_ranks:
                parameter.data.copy_(combined)
    return models[0]


_MAKERS = [partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.Adam, lr=0.01)]


@on_ranks(2, 4, each={"passes": [1, 2], "make": _MAKERS})
def test_optimizer_combines_changes(passes, make):
    model = _model()
    options = {"backward_passes_per_step": passes, "op": hvd.Adasum}
    optimizer = distributed(model, make(model.parameters()), **options)
    for step in range(4):
        _train(model, optimizer, hvd.rank(), step, passes)
    torch.testing.assert_close(flat(model), flat(_changes_alone(make, passes)))


@on_ranks(3)
def test_three_ranks_are_refused_but_not_two_of_them():
    pair = hvd.add_process_set([0, 2])
    with pytest.raises(NotImplementedError, match=r"3 ranks \(expected a power of two"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)
    # Nothing is left behind on any rank, and a part of the ranks may be a power of two.
    torch.testing.assert_close(hvd.allreduce(torch.ones(2)), torch.ones(2))
    if pair.included():
        inputs = _inputs(9)
        result = hvd.allreduce(inputs[hvd.rank()], op=hvd.Adasum, process_set=pair)
        torch.testing.assert_close(result, _tree([inputs[0], inputs[2]]))
        with pytest.raises(NotImplementedError, match="global_process_set"):
            hvd.DistributedOptimizer(
                torch.optim.SGD(_model().parameters(), 0.1), op=hvd.Adasum, process_set=pair
            )
    hvd.barrier()
