"""Gradients that are given other memory, as Module.to does, while they travel and between steps."""

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from tests.support.jobs import on_ranks


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten())


def _backward(model, step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    inputs = torch.randn(2, 3, 8, 8, generator=generator, dtype=model[0].weight.dtype)
    model(inputs).pow(2).mean().backward()


def _scale(model):
    for parameter in model.parameters():
        parameter.grad.data = parameter.grad.data * 0.5


_WAYS = {
    "data": _scale,
    "format": lambda model: model.to(memory_format=torch.channels_last),
    "dtype": lambda model: model.double(),
}


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"num_groups": 1}])
@on_ranks(2)
def test_a_gradient_that_gets_other_memory_on_its_way_is_an_error(options):
    """The core goes on with the memory that left, and every rank says what has happened."""
    for change in _WAYS.values():
        model = _net()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )
        for step in range(3):
            optimizer.zero_grad(set_to_none="gradient_as_bucket_view" not in options)
            _backward(model, step, hvd.rank())
            if step == 2:
                change(model)
                with pytest.raises(ValueError, match="was given other memory between"):
                    optimizer.step()
            else:
                optimizer.step()


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}])
@pytest.mark.parametrize("way", ["data", "format"])
@on_ranks(2)
def test_between_steps_gradients_may_get_other_memory(way, options):
    results = []
    for alone in (True, False):
        model = _net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if not alone:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        for step in range(6):
            optimizer.zero_grad(set_to_none=False)
            if alone:
                for rank in range(hvd.size()):
                    _backward(model, step, rank)
                for parameter in model.parameters():
                    parameter.grad /= hvd.size()
            else:
                _backward(model, step, hvd.rank())
                optimizer.synchronize()
            if step == 3:
                _WAYS[way](model)
            if alone:
                optimizer.step()
            else:
                with optimizer.skip_synchronize():
                    optimizer.step()
        results.append([parameter.detach() for parameter in model.parameters()])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("keep", [True, False])
@on_ranks(2)
def test_views_of_a_model_of_another_dtype_are_an_error(keep):
    model = _net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        gradient_as_bucket_view=True,
    )
    _backward(model, 0, hvd.rank())
    optimizer.step()
    optimizer.zero_grad(set_to_none=not keep)
    model.double()
    with pytest.raises(ValueError, match=r"is of torch.float64 on cpu now \(expected torch"):
        _backward(model, 1, hvd.rank())
