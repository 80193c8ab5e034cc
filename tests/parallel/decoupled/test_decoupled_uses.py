"""Parameters that are read, written, copied or saved between steps, other than by modules."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import aiacc.torch as hvd
from tests.parallel.decoupled.decoupled_training import (
    batch,
    check_equal,
    gather_late,
    loss,
    net,
    train,
    wrap,
)
from tests.support.ranks import run_ranks


class _Own(nn.Parameter):
    """A class of the user's."""


class _Encoder(nn.Module):
    """Its users call `encode`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(20, 20) / 5)
        self.own = _Own(torch.randn(20))
        self.last = nn.Linear(20, 20)

    def encode(self, rows):
        return self.last(torch.tanh(rows @ self.weight) + self.own)

    def forward(self, rows):
        return self.encode(rows)


def _pair(make, make_optimizer=lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), more=None):
    """Two equal models, and their optimizers of both schedules."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    models = [make(), make()]
    optimizers = [
        wrap(models[0], make_optimizer(models[0].parameters()), "all_reduce"),
        wrap(models[1], make_optimizer(models[1].parameters()), bucket_bytes=1000, **(more or {})),
    ]
    return models, optimizers


def _check_under_way(optimizer):
    assert all(bucket.gathering for bucket in optimizer._exchange.buckets)


def _regularised(model, step, rank):
    penalty = sum(parameter.pow(2).sum() for parameter in model.parameters())
    return loss(model, step, rank) + 0.01 * penalty


def _norms_first(model, step, rank):
    norms = torch._foreach_norm(list(model.parameters()))
    vector = nn.utils.parameters_to_vector(model.parameters())
    return loss(model, step, rank) * (1 + 0.1 * sum(norms) + vector.abs().max())


def _encodes(model, step, rank):
    return model.encode(batch(step, rank)).pow(2).mean()


def _forwards(model, step, rank):
    return model.forward(batch(step, rank)).pow(2).mean()


def _functional(model, step, rank):
    halved = {name: parameter / 2 for name, parameter in model.named_parameters()}
    return torch.func.functional_call(model, halved, (batch(step, rank),)).pow(2).mean()


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight):
        ctx.save_for_backward(rows, weight)
        return rows @ weight

    @staticmethod
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        return gradient @ weight.T, rows.T @ gradient


def _by_a_function_of_ones_own(model, step, rank):
    return model.last(_Scaled.apply(batch(step, rank), model.weight) + model.own).pow(2).mean()


@pytest.mark.parametrize(
    "on", [_regularised, _norms_first, _encodes, _forwards, _functional, _by_a_function_of_ones_own]
)
def test_losses_that_use_parameters_in_their_ways(on):
    run_ranks(2, _losses, on)


def _losses(on):
    models, optimizers = _pair(_Encoder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, range(5), loss=on)
    _check_under_way(optimizers[1])
    check_equal(models[1], models[0])
    assert type(models[1].own) is _Own
    assert type(models[1].weight) is nn.Parameter
    hvd.shutdown()


def _clamps(model):
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


def _adds(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)


def _replaces(model):
    for parameter in model.parameters():
        parameter.data = parameter.data.clamp(-0.1, 0.1)


def _sets_an_element(model):
    with torch.no_grad():
        model[0].weight[0, :3] = 0.25
        torch._foreach_mul_([model[2].weight, model[2].bias], 0.5)


def _copies_from(model):
    nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(model.parameters()) * 0.9, model.parameters()
    )


def _writes(write):
    models, optimizers = _pair(net)
    for model, optimizer in zip(models, optimizers, strict=True):
        for step in range(5):
            train(model, optimizer, [step])
            write(model)
    train(models[0], optimizers[0], [5])
    train(models[1], optimizers[1], [5])
    _check_under_way(optimizers[1])
    check_equal(models[1], models[0])
    hvd.shutdown()


@pytest.mark.parametrize("write", [_clamps, _adds, _replaces, _sets_an_element, _copies_from])
def test_writes_after_steps(write):
    run_ranks(2, _writes, write)


def _average(copies, model):
    with torch.no_grad():
        torch._foreach_lerp_(copies, list(model.parameters()), 0.25)


def _averages():
    models, optimizers = _pair(net)
    averages = [[p.detach().clone() for p in model.parameters()] for model in models]
    for model, optimizer, average in zip(models, optimizers, averages, strict=True):
        for step in range(5):
            train(model, optimizer, [step])
            _average(average, model)
    for found, expected in zip(averages[1], averages[0], strict=True):
        assert torch.equal(found, expected)
    hvd.shutdown()


def test_averages_of_weights():
    run_ranks(2, _averages)


def _projects(model):
    """Needs whole parameters, and writes to them."""
    for parameter in model.parameters():
        parameter.mul_(1 / max(1.0, float(parameter.norm())))


def _in_hooks():
    models, optimizers = _pair(net)
    averages = [copy.deepcopy(model) for model in models]
    for model, optimizer, average in zip(models, optimizers, averages, strict=True):

        def stepped(*_, model=model, average=average):
            with torch.no_grad():
                _projects(model)
            _average(list(average.parameters()), model)

        optimizer.register_step_post_hook(stepped)
        train(model, optimizer, range(5))
    check_equal(models[1], models[0])
    check_equal(averages[1], averages[0])
    hvd.shutdown()


def test_hooks_after_the_step_use_parameters():
    run_ranks(2, _in_hooks)


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


_COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "save": _saved,
    "state_dict": lambda model: {name: p.clone() for name, p in model.state_dict().items()},
    "parameter": lambda model: copy.deepcopy(model[2].weight),
    "shallow": lambda model: copy.copy(model[0].weight),
    "numpy": lambda model: model[0].weight.detach().numpy().copy(),
    "text": lambda model: repr(model[0].weight),
}


def _copies():
    models, optimizers = _pair(net)
    for step, make in enumerate(_COPIES.values()):
        copies = []
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, [2 * step, 2 * step + 1])
            copies.append(make(model))
        if isinstance(copies[0], nn.Module):
            assert type(copies[1][0].weight) is nn.Parameter
            copies = [list(module.parameters()) for module in copies]
        if isinstance(copies[0], str):
            assert copies[0] == copies[1]
            continue
        torch.testing.assert_close(copies[1], copies[0], rtol=0, atol=0)
        _check_other_memory(copies[1], models[1])
    hvd.shutdown()


def _check_other_memory(copied, model):
    if isinstance(copied, list):
        own = {parameter.data_ptr() for parameter in model.parameters()}
        assert not own & {parameter.data_ptr() for parameter in copied}


def test_copies_after_steps():
    run_ranks(2, _copies)


def _old_graph():
    """Values of before the step are no use for gradients: torch says so, as after any step."""
    models, optimizers = _pair(net)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, range(3))
        value = loss(model, 0, 0)
        train(model, optimizer, [3])
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
            value.backward()
    hvd.shutdown()


def test_backward_passes_of_a_step_before():
    run_ranks(2, _old_graph)


def _views():
    """Who keeps a view has current values after each step, as of an optimizer without ranks."""
    models, optimizers = _pair(net)
    kept = [[model[2].weight.data, model[0].bias.detach()[3:]] for model in models]
    for step in range(5):
        for model, optimizer in zip(models, optimizers, strict=True):
            train(model, optimizer, [step])
        for found, expected in zip(kept[1], kept[0], strict=True):
            assert torch.equal(found, expected)
    waited = [not bucket.gathering for bucket in optimizers[1]._exchange.buckets]
    assert sorted(set(waited)) == [False, True]
    del kept, found, expected
    train(models[1], optimizers[1], [5])
    _check_under_way(optimizers[1])
    hvd.shutdown()


def test_views_that_are_kept():
    run_ranks(2, _views)


def _plain(rows, weight):
    return torch.tanh(rows @ weight)


def _script(what):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        return torch.jit.script(what)


class _Scripted(nn.Module):
    """What TorchScript runs is not seen: a module whose method is called, and a function."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(20, 20) / 5)
        self.first = _script(nn.Sequential(nn.Linear(20, 20), nn.Tanh()))
        self.function = [_script(_plain)]
        self.last = nn.Linear(20, 20)

    def forward(self, rows):
        return self.last(self.function[0](self.first(rows), self.weight))


def _torchscript():
    models, optimizers = _pair(_Scripted)
    train(models[0], optimizers[0], range(5))
    train(models[1], optimizers[1], range(1))
    with pytest.warns(UserWarning, match=r"'weight' was used by code that torch does not see"):
        train(models[1], optimizers[1], range(1, 2))
    train(models[1], optimizers[1], range(2, 5))
    exchange = optimizers[1]._exchange
    unseen = [n for n, (name, _) in enumerate(exchange.named) if not name.startswith("last")]
    waited = {number for number, b in enumerate(exchange.buckets) if set(b.members) & set(unseen)}
    assert exchange.guards.synchronous == waited
    assert [b.gathering for b in exchange.buckets].count(True) == len(exchange.buckets) - len(
        waited
    )
    # TorchScript fuses functions from its second call on, of the second model from the first.
    for found, expected in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(found, expected)
    hvd.shutdown()


def test_torchscript_is_waited_for():
    run_ranks(2, _torchscript)


def _unseen_later():
    models, optimizers = _pair(_Encoder)
    model, optimizer = models[1], optimizers[1]
    train(model, optimizer, range(3))
    scripted = _script(_plain)
    value = scripted(batch(3, hvd.rank()), model.weight).sum()
    assert value.isnan()  # no value of the step before
    with pytest.raises(RuntimeError, match=r"'weight' has a gradient, but was not used .*flush"):
        value.backward()
    optimizer.flush()
    assert not scripted(batch(3, hvd.rank()), model.weight).isnan().any()
    hvd.shutdown()


def test_a_use_that_nobody_sees_in_a_later_step_is_an_error():
    run_ranks(2, _unseen_later)


def _threads():
    """Several threads use a parameter first; all of them wait."""
    from concurrent.futures import ThreadPoolExecutor

    models, optimizers = _pair(net)
    with ThreadPoolExecutor(4) as pool:
        for step in range(4):
            for model, optimizer in zip(models, optimizers, strict=True):
                train(model, optimizer, [step])
            rows = batch(9, 9)
            found = list(pool.map(models[1], [rows] * 8))
            expected = models[0](rows)
            assert all(torch.equal(one, expected) for one in found)
    hvd.shutdown()


def test_threads_wait_alike():
    run_ranks(2, _threads)


def _frees():
    """Attributes that read no element wait for nothing."""
    models, optimizers = _pair(net)
    model, optimizer = models[1], optimizers[1]
    train(model, optimizer, range(3))
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is not None
        assert isinstance(parameter, nn.Parameter)
        assert parameter in {parameter: 1}
    model.zero_grad()
    optimizer.zero_grad()
    _check_under_way(optimizer)
    assert not any(bucket.open for bucket in optimizer._exchange.buckets)
    assert functional.linear(batch(0, 0), model[0].weight).shape == (8, 40)
    assert [bucket.open for bucket in optimizer._exchange.buckets].count(True) == 1
    hvd.shutdown()


def test_a_use_waits_for_its_bucket_only():
    run_ranks(2, _frees)


def _raw():
    """What code in C++ that looks at memory alone finds while values are awaited."""
    models, optimizers = _pair(net)
    train(models[1], optimizers[1], range(3))
    _check_under_way(optimizers[1])
    with torch._C.DisableTorchFunctionSubclass():
        for parameter in models[1].parameters():
            assert parameter.is_contiguous()
            assert parameter.untyped_storage().nbytes() >= 4 * parameter.numel()
            assert parameter.isnan().all()
    check_equal(models[1], models[1])
    hvd.shutdown()


def test_memory_that_is_awaited_is_as_large_as_the_parameter():
    run_ranks(2, _raw)
