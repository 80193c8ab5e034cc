"""Nobody uses parameters of the step before, whoever uses them, and in whatever order."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import aiacc.torch as hvd
from tests.parallel.decoupled.decoupled_training import (
    batch,
    begin,
    check_equal,
    gather_late,
    loss,
    net,
    train,
    wrap,
)
from tests.support.ranks import run_ranks


class _Attention(nn.Module):
    """A parent, MultiheadAttention, uses the weights of a child whose forward is never called."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(20, 2, batch_first=True)
        self.last = nn.Linear(20, 20)

    def forward(self, rows):
        rows = rows.unsqueeze(0)
        return self.last(self.attention(rows, rows, rows)[0])


class _Tied(nn.Module):
    """One weight of two modules, and one that another module uses without calling its owner."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(40, 20, bias=False)
        self.body = nn.Linear(20, 40)
        self.tied = nn.Linear(40, 20, bias=False)
        self.tied.weight = self.head.weight
        self.lent = nn.Linear(20, 20)

    def forward(self, rows):
        rows = functional.linear(rows, self.lent.weight)
        hidden = self.tied(torch.relu(self.body(rows)))
        return self.head(self.body(self.lent(hidden)))


class _Backwards(nn.Module):
    """Modules are called in another order than they were registered in, one of them twice."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(20, 20) for _ in range(4))

    def forward(self, rows):
        for part in [*reversed(self.parts), self.parts[3]]:
            rows = torch.tanh(part(rows))
        return rows


class _Normed(nn.Module):
    """A pre-hook of torch computes the weight from parameters before the module is called."""

    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the old one, which works by a hook, is deprecated
            self.old = nn.utils.weight_norm(nn.Linear(20, 20))
        self.new = nn.utils.parametrizations.weight_norm(nn.Linear(20, 20))

    def forward(self, rows):
        return self.new(torch.tanh(self.old(rows)))


class _Recurrent(nn.Module):
    """A list of weights goes to one function; activations are computed again in the backward."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(20, 20, 2)
        self.last = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 20))

    def forward(self, rows):
        hidden = self.cell(rows.unsqueeze(1))[0]
        return torch.utils.checkpoint.checkpoint(self.last, hidden, use_reentrant=False)


def _guards(kind):
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(kind())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none is without guard
        for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
            sgd = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
            optimizer = wrap(model, sgd, schedule, **(_small(schedule)))
            train(model, optimizer, range(4))
    assert any(bucket.gathering for bucket in optimizer._exchange.buckets)
    assert len(optimizer._exchange.buckets) > 1
    optimizer.flush()
    check_equal(models[1], models[0])
    hvd.shutdown()


def _small(schedule):
    return {"bucket_bytes": 1000} if schedule == "decoupled" else {}


@pytest.mark.parametrize("kind", [_Attention, _Tied, _Backwards, _Normed, _Recurrent])
def test_modules_that_use_parameters_in_their_ways(kind):
    run_ranks(2, _guards, kind)


def _compiled(how):
    """Compiled code is not compiled anew, and sees no parameter that is awaited."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    models, counts = (net(), net()), []
    for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
        call = model
        if how == "model":
            call = torch.compile(model, backend=backend)
        elif how == "in place":
            model.compile(backend=backend)
        elif how == "blocks":
            hvd.compile_blocks(model, backend=backend)
        elif how == "part":
            model[2] = torch.compile(model[2], backend=backend)
            optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)
        on = lambda _, s, r, call=call: loss(call, s, r)  # noqa: E731
        train(model, optimizer, range(4), loss=on)
        counts.append(len(graphs))
        train(model, optimizer, range(4, 7), loss=on)
        assert len(graphs) == counts[-1]
    # At most once more: in the first step, which has nothing to wait for, and in the second.
    assert counts[1] - counts[0] <= 2 * counts[0]
    assert not optimizer._exchange.guards.synchronous
    assert any(bucket.gathering for bucket in optimizer._exchange.buckets)
    check_equal(models[1], models[0])
    hvd.shutdown()


@pytest.mark.parametrize("how", ["model", "in place", "blocks", "part"])
def test_compiled_models(how):
    run_ranks(2, _compiled, how, timeout=110)


def _compiled_function():
    """What is compiled without the model is right, if slow: it has no hook."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    models = net(), net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dynamo
        for model, schedule in zip(models, ("all_reduce", "decoupled"), strict=True):
            optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1), schedule)

            @torch.compile(backend="eager")
            def on(model, rows):
                hidden = torch.tanh(functional.linear(rows, model[0].weight, model[0].bias))
                hidden = functional.linear(hidden, model[2].weight, model[2].bias)
                return functional.linear(hidden, model[4].weight, model[4].bias).pow(2).mean()

            train(model, optimizer, range(5), loss=lambda m, s, r, on=on: on(m, batch(s, r)))
    check_equal(models[1], models[0])
    hvd.shutdown()


def test_a_compiled_function_of_parameters():
    run_ranks(2, _compiled_function, timeout=110)


def _readers():
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    reference, model = net(), net()
    sgd = torch.optim.SGD(reference.parameters(), 0.1)
    other = wrap(reference, sgd, "all_reduce")
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))

    def step(number):
        train(reference, other, [number])
        train(model, optimizer, [number])

    step(0)
    step(1)
    assert all(bucket.gathering for bucket in optimizer._exchange.buckets)
    for name, value in model.state_dict().items():
        assert torch.equal(value, reference.state_dict()[name])
    step(2)
    for name, value in model[2].state_dict().items():
        assert torch.equal(value, reference[2].state_dict()[name])
    optimizer.flush()
    step(3)
    model.eval()
    assert torch.equal(model(batch(9, 9)), reference(batch(9, 9)))
    model.train()
    step(4)
    with torch.no_grad():
        assert torch.equal(model(batch(9, 9)), reference(batch(9, 9)))
    step(5)
    hvd.broadcast_parameters(list(model.named_parameters()), 1)
    check_equal(model, reference)
    step(6)
    model.load_state_dict(net().state_dict())
    check_equal(model, net())
    optimizer.flush()
    check_equal(model, net())
    hvd.shutdown()


def test_readers_and_writers_of_parameters_wait():
    run_ranks(2, _readers)


def _copies():
    model, optimizer = begin()
    train(model, optimizer, range(2))
    rows = batch(0, 0)
    expected = model(rows)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(rows), expected)
        assert other[0].weight.data_ptr() != model[0].weight.data_ptr()
        assert other.state_dict().keys() == model.state_dict().keys()
    with pytest.raises(TypeError, match=r"cannot be copied or pickled"):
        copy.deepcopy(optimizer)
    del optimizer
    again = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    train(model, again, range(2))
    again.flush()
    assert not torch.equal(model(rows), expected)
    hvd.shutdown()


def test_models_are_copied_and_wrapped_again():
    run_ranks(2, _copies)


def _ends_early():
    """Rank 1 ends at once after the last step; rank 0 reads parameters later."""
    torch.set_num_threads(1)
    hvd.init()
    gather_late()
    model = net()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    train(model, optimizer, range(2))
    if hvd.rank() == 1:
        hvd.shutdown()
    else:
        optimizer.flush()
    assert not any(bucket.gathering for bucket in optimizer._exchange.buckets)
    value = loss(model, 0, 0).item()
    hvd.shutdown()
    return value


def test_the_end_of_a_rank_waits_for_the_parameters():
    one, other = run_ranks(2, _ends_early)
    assert one == other
