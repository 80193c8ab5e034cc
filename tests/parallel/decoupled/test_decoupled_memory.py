"""Parameters and gradients that are given other memory, as Module.to does, and .data = does."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from tests.parallel.decoupled.decoupled_training import train, wrap
from tests.support.ranks import free_port, run_ranks


def _net(memory_format=torch.contiguous_format):
    """In float64, so that orders of sums, which memory formats change, are within tolerances."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.Flatten(1), nn.Linear(96, 8)
    )
    model.append(nn.Linear(8, 8))
    return model.to(torch.float64, memory_format=memory_format)


def _loss(model, step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    inputs = torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)
    return model(inputs).pow(2).mean()


def _adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def _channels_last(model):
    model.to(memory_format=torch.channels_last)


def _contiguous(model):
    model.to(memory_format=torch.contiguous_format)


def _scale_parameters(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.9


def _scale_gradients(model):
    for parameter in model.parameters():
        parameter.grad.data = parameter.grad.data * 0.5


def _is_square(tensor):
    return tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2]


def _transpose_parameters(model):
    """The same memory in another form."""
    for parameter in filter(_is_square, model.parameters()):
        parameter.data = parameter.data.mT


def _transpose_gradients(model):
    for parameter in filter(_is_square, model.parameters()):
        parameter.grad.data = parameter.grad.data.mT


def _before(change):
    return torch.channels_last if change is _contiguous else torch.contiguous_format


def _train(model, optimizer, ranks, change, when, set_to_none):
    """Five steps of two passes each, with the change in the third."""
    passes = 2
    for step in range(5):
        optimizer.zero_grad(set_to_none=set_to_none)
        for number in range(passes):
            total = sum(_loss(model, passes * step + number, rank) for rank in ranks)
            (total / hvd.size() if len(ranks) > 1 else total).backward()
            if (step, number) == (2, 0) and when == "passes":
                change(model)
        if step == 2 and when == "synchronize":
            if len(ranks) == 1:
                optimizer.synchronize()
            change(model)
        optimizer.step()
        if step == 2 and when == "step":
            change(model)


def _between(changes, when):
    torch.set_num_threads(1)
    hvd.init()
    for change, set_to_none in itertools.product(changes, (True, False)):
        models = [_net(_before(change)) for _ in range(2)]
        plain = _adam(models[0])
        _train(models[0], plain, range(hvd.size()), change, when, set_to_none)
        optimizer = wrap(models[1], _adam(models[1]), backward_passes_per_step=2)
        _train(models[1], optimizer, [hvd.rank()], change, when, set_to_none)
        for expected, found in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(found, expected)
    hvd.shutdown()


@pytest.mark.parametrize(
    ("when", "changes"),
    [
        ("step", [_channels_last, _contiguous, _scale_parameters, _transpose_parameters]),
        ("passes", [_channels_last, _contiguous, _scale_gradients, _transpose_gradients]),
        ("synchronize", [_scale_parameters, _transpose_parameters]),
    ],
)
def test_training_is_plain_with_other_memory_after(when, changes):
    run_ranks(2, _between, changes, when)


def _on_the_way():
    """An error in the first step, and in later ones, and no parameter is changed."""
    torch.set_num_threads(1)
    hvd.init()
    for change, synchronizes in itertools.product(
        (_channels_last, _scale_gradients), (False, True)
    ):
        models = [_net(), _net()]
        optimizers = [wrap(m, torch.optim.SGD(m.parameters(), 0.1)) for m in models]
        for step in range(3):
            before = [parameter.detach().clone() for parameter in models[1].parameters()]
            _loss(models[1], step, hvd.rank()).backward()
            if synchronizes:
                optimizers[1].synchronize()
            change(models[1])
            with pytest.raises(ValueError, match=r"bucket of '.*' were .* or given other memory"):
                optimizers[1].step()
            assert all(map(torch.equal, before, models[1].parameters()))
            for model, optimizer in zip(models, optimizers, strict=True):
                train(model, optimizer, [step], loss=_loss)
        assert all(map(torch.equal, *(model.parameters() for model in models)))
    hvd.shutdown()


def test_gradients_that_get_other_memory_on_their_way_are_an_error():
    run_ranks(2, _on_the_way)


class _Assigns(torch.optim.SGD):
    """Gives what it updates other memory, and its gradient too."""

    is_elementwise = True

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.data = parameter.grad.data.clamp(-0.01, 0.01)
                    parameter.data = parameter.data - group["lr"] * parameter.grad


def _assigns():
    torch.set_num_threads(1)
    hvd.init()
    models = [_net(), _net()]
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizer = wrap(model, _Assigns(model.parameters(), lr=0.5), schedule)
        train(model, optimizer, range(4), loss=_loss)
    for expected, found in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(found, expected)
    assert not torch.equal(next(models[1].parameters()), next(_net().parameters()))
    hvd.shutdown()


def test_an_optimizer_that_gives_its_segments_other_memory():
    run_ranks(2, _assigns)


def _new_format(port):
    """Formats of another job are those of its model, for the state as well."""
    torch.set_num_threads(1)
    hvd.init()
    models = [_net(), _net()]
    optimizers = [
        wrap(model, _adam(model), schedule)
        for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True)
    ]
    for anew in (False, True):
        if anew:
            optimizers[1].consolidate_state_dict(None)
            _channels_last(models[1])
            hvd.barrier()
            hvd.shutdown()
            os.environ["AIACC_ADDR"] = f"127.0.0.1:{port}"
            hvd.init()
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, range(3 * anew, 3 * anew + 3), loss=_loss)
    for expected, found in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(found, expected)
    hvd.shutdown()


def test_a_new_job_of_a_model_in_another_format():
    run_ranks(2, _new_format, free_port())
