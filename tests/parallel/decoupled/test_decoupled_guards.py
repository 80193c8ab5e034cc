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
    NET,
    all_awaited,
    compare_late,
    loss,
    net,
    rows,
    sgd,
    start,
    wrap,
)
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    Alone,
    Recipe,
    Together,
    check_learned,
    gathers_late,
    train,
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


def _four_steps(training):
    train(training, range(4))
    if not isinstance(training, Alone):
        assert training.optimizer.awaited
        assert len(training.optimizer.buckets) > 1


@pytest.mark.parametrize("kind", [_Attention, _Tied, _Backwards, _Normed, _Recurrent])
@on_ranks(2)
def test_modules_that_use_parameters_in_their_ways(kind):
    def make():
        torch.manual_seed(0)
        return kind()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none is without guard
        compare_late(_four_steps, Recipe(make, lambda parameters: sgd(parameters, 0.5), loss))


@pytest.mark.parametrize("how", ["model", "in place", "blocks", "part"])
@on_ranks(2)
def test_compiled_models(how):
    """Compiled code is not compiled anew, and sees no parameter that is awaited."""
    graphs, counts = [], []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def compiled(training):
        model = call = training.model
        if how == "model":
            call = torch.compile(model, backend=backend)
        elif how == "in place":
            model.compile(backend=backend)
        elif how == "blocks":
            hvd.compile_blocks(model, backend=backend)
        elif how == "part":
            model[2] = torch.compile(model[2], backend=backend)
            if isinstance(training, Together):
                training.optimizer = None
                training.optimizer = wrap(model)
        training.loss = lambda _, rank, batch: loss(call, rank, batch)
        train(training, range(4))
        counts.append(len(graphs))
        train(training, range(4, 7))
        assert len(graphs) == counts[-1]
        assert isinstance(training, Alone) or all_awaited(training.optimizer)

    compare_late(compiled, NET)
    # At most once more: in the first step, which has nothing to wait for, and in the second.
    assert counts[1] - counts[0] <= 2 * counts[0]


@on_ranks(2)
def test_a_compiled_function_of_parameters():
    """What is compiled without the model is right, if slow: it has no hook."""

    def trained_by_a_function(training):
        @torch.compile(backend="eager")
        def on(model, rows):
            hidden = torch.tanh(functional.linear(rows, model[0].weight, model[0].bias))
            hidden = functional.linear(hidden, model[2].weight, model[2].bias)
            return functional.linear(hidden, model[4].weight, model[4].bias).pow(2).mean()

        training.loss = lambda model, rank, batch: on(model, rows(rank, batch))
        train(training, range(5))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dynamo
        compare_late(trained_by_a_function, NET)


@on_ranks(2)
def test_readers_and_writers_of_parameters_wait():
    model = net()
    alone = Alone(model, sgd(model.parameters()), loss)
    training = start()
    reference, model = alone.model, training.model

    def step(number):
        train(alone, [number])
        train(training, [number])

    def check_state(found, expected):
        for name, value in found.state_dict().items():
            assert torch.equal(value, expected.state_dict()[name])

    with gathers_late():
        step(0)
        step(1)
        assert all_awaited(training.optimizer)
        check_state(model, reference)
        step(2)
        check_state(model[2], reference[2])
        training.optimizer.flush()
        step(3)
        model.eval()
        assert torch.equal(model(rows(9, 9)), reference(rows(9, 9)))
        model.train()
        step(4)
        with torch.no_grad():
            assert torch.equal(model(rows(9, 9)), reference(rows(9, 9)))
        step(5)
        hvd.broadcast_parameters(list(model.named_parameters()), 1)
        check_learned(model, reference, exactly=True)
        step(6)
        model.load_state_dict(net().state_dict())
        check_learned(model, net(), exactly=True)
        training.optimizer.flush()
        check_learned(model, net(), exactly=True)


@on_ranks(2)
def test_models_are_copied_and_wrapped_again():
    training = train(start(), range(2))
    model = training.model
    expected = model(rows(0, 0))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(rows(0, 0)), expected)
        assert other[0].weight.data_ptr() != model[0].weight.data_ptr()
        assert other.state_dict().keys() == model.state_dict().keys()
    with pytest.raises(TypeError, match=r"cannot be copied or pickled"):
        copy.deepcopy(training.optimizer)
    training.optimizer = None
    training.optimizer = wrap(model)
    train(training, range(2)).optimizer.flush()
    assert not torch.equal(model(rows(0, 0)), expected)


def _ends_early():
    """Rank 1 ends at once after the last step; rank 0 reads parameters later."""
    torch.set_num_threads(1)
    hvd.init()
    training = start()
    with gathers_late():
        train(training, range(2))
        if hvd.rank() == 1:
            hvd.shutdown()
        else:
            training.optimizer.flush()
        assert not training.optimizer.awaited
        value = loss(training.model, 0, 0).item()
    hvd.shutdown()
    return value


def test_the_end_of_a_rank_waits_for_the_parameters():
    one, other = run_ranks(2, _ends_early)
    assert one == other
