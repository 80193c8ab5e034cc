"""Nobody uses parameters of the step before: who runs, reads, writes or copies them waits."""

import copy
import itertools
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import aiacc.torch as hvd
from tests.parallel.decoupled.decoupled_training import (
    NET,
    all_awaited,
    compare_late,
    copied,
    loss,
    net,
    rows,
    sgd,
    start,
)
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    DUPLICATES,
    Alone,
    Recipe,
    Together,
    check_same_everywhere,
    train,
)


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


def _check_under_way(training):
    assert isinstance(training, Alone) or all_awaited(training.optimizer)


def _regularised(model, rank, batch):
    penalty = sum(parameter.pow(2).sum() for parameter in model.parameters())
    return loss(model, rank, batch) + 0.01 * penalty


def _norms_first(model, rank, batch):
    norms = torch._foreach_norm(list(model.parameters()))
    vector = nn.utils.parameters_to_vector(model.parameters())
    return loss(model, rank, batch) * (1 + 0.1 * sum(norms) + vector.abs().max())


def _calls(name, model, rank, batch):
    return getattr(model, name)(rows(rank, batch)).pow(2).mean()


def _functional(model, rank, batch):
    halved = {name: parameter / 2 for name, parameter in model.named_parameters()}
    return torch.func.functional_call(model, halved, (rows(rank, batch),)).pow(2).mean()


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight):
        ctx.save_for_backward(rows, weight)
        return rows @ weight

    @staticmethod
    def backward(ctx, gradient):
        rows, weight = ctx.saved_tensors
        return gradient @ weight.T, rows.T @ gradient


def _by_a_function_of_ones_own(model, rank, batch):
    return model.last(_Scaled.apply(rows(rank, batch), model.weight) + model.own).pow(2).mean()


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


def _normed():
    """Pre-hooks of torch compute weights from parameters before the modules are called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old one, which works by a hook, is deprecated
        old = nn.utils.weight_norm(nn.Linear(20, 20))
    return nn.Sequential(old, nn.Tanh(), nn.utils.parametrizations.weight_norm(nn.Linear(20, 20)))


class _Recurrent(nn.Module):
    """A list of weights goes to one function; activations are computed again in the backward."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(20, 20, 2)
        self.last = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 20))

    def forward(self, rows):
        hidden = self.cell(rows.unsqueeze(1))[0]
        return torch.utils.checkpoint.checkpoint(self.last, hidden, use_reentrant=False)


_USES = [
    *((_Encoder, partial(_calls, name)) for name in ("encode", "forward")),
    *((_Encoder, on) for on in (_regularised, _norms_first, _functional)),
    (_Encoder, _by_a_function_of_ones_own),
    *((kind, loss) for kind in (_Attention, _Tied, _Backwards, _normed, _Recurrent)),
]


@on_ranks(2, each={"use": _USES})
def test_losses_and_modules_that_use_parameters_in_their_ways(use):
    kind, on = use

    def make():
        torch.manual_seed(0)
        return kind()

    def five_steps(training):
        train(training, range(5))
        if isinstance(training, Together):
            assert len(training.optimizer.buckets) > 1
            assert training.optimizer.awaited
            assert kind is not _Encoder or all_awaited(training.optimizer)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none is without guard
        model = compare_late(five_steps, Recipe(make, sgd, on)).model
    if kind is _Encoder:
        assert type(model.own) is _Own
        assert type(model.weight) is nn.Parameter


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


def _loads(model):
    model.load_state_dict({name: value * 0.9 for name, value in net().state_dict().items()})


def _is_sent(model):
    hvd.broadcast_parameters(list(model.named_parameters()), 1)


_WRITES = [_clamps, _adds, _replaces, _sets_an_element, _copies_from, _loads, _is_sent]


def _written(write, training):
    for batch in range(5):
        train(training, [batch])
        if write is not _is_sent or isinstance(training, Together):
            write(training.model)
    _check_under_way(train(training, [5]))


def _hooked_after_the_step(training):
    average = copy.deepcopy(training.model)

    def stepped(*_):
        with torch.no_grad():
            for parameter in training.model.parameters():
                parameter.mul_(1 / max(1.0, float(parameter.norm())))
            lists = [*average.parameters()], [*training.model.parameters()]
            torch._foreach_lerp_(*lists, 0.25)

    training.optimizer.register_step_post_hook(stepped)
    train(training, range(5))
    return copied(average.parameters())


_COPIES = {
    **DUPLICATES,
    "state_dict": lambda model: copied(model.state_dict().values()),
    "state_dict of a part": lambda model: copied(model[2].state_dict().values()),
    "without gradients": lambda model: torch.no_grad()(model)(rows(9, 9)),
    "evaluated": lambda model: model.eval()(rows(9, 9)).detach(),
    "parameter": lambda model: copy.deepcopy(model[2].weight),
    "shallow": lambda model: copy.copy(model[0].weight),
    "numpy": lambda model: model[0].weight.detach().numpy().copy(),
    "averages": lambda model: torch.no_grad()(torch._foreach_lerp)(
        [torch.ones(p.shape) for p in model.parameters()], [*model.parameters()], 0.25
    ),
    "text": lambda model: list(repr(model[0].weight).encode()),
}


def _copied(how, training):
    train(training, range(2))
    found = _COPIES[how](training.model)
    if isinstance(found, nn.Module):
        assert type(found[0].weight) is nn.Parameter
        own = {parameter.data_ptr() for parameter in training.model.parameters()}
        assert not own & {parameter.data_ptr() for parameter in found.parameters()}
        found = copied(found.parameters())
    return found


def _backward_too_late(training):
    """Values of before the step are no use for gradients: torch says so, as after any step."""
    train(training, range(3))
    value = loss(training.model, 0, 0)
    train(training, [3])
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        value.backward()


def _viewed(training):
    """Who keeps a view has current values after each step, as of an optimizer without ranks."""
    model, seen = training.model, []
    kept = [model[2].weight.data, model[0].bias.detach()[3:]]
    for batch in range(5):
        train(training, [batch])
        seen += copied(kept)
    if not isinstance(training, Alone):
        assert 0 < len(training.optimizer.awaited) < len(list(model.parameters()))
    del kept
    _check_under_way(train(training, [5]))
    return seen


def _read_by_threads(training):
    """Several threads use a parameter first; all of them wait."""
    found = []
    with ThreadPoolExecutor(4) as pool:
        for batch in range(4):
            train(training, [batch])
            found += copied(pool.map(training.model, [rows(9, 9)] * 8))
    return found


_SITUATIONS = [
    *(partial(_written, write) for write in _WRITES),
    *(partial(_copied, how) for how in _COPIES),
    *(_hooked_after_the_step, _backward_too_late, _viewed, _read_by_threads),
]


@on_ranks(2, each={"situation": _SITUATIONS})
def test_after_steps(situation):
    compare_late(situation, NET)


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


@on_ranks(2)
def test_torchscript_is_waited_for():
    def scripted(training):
        train(training, range(1))
        if isinstance(training, Alone):
            train(training, range(1, 5))
            return
        with pytest.warns(UserWarning, match=r"'weight' was used by code that torch does not see"):
            train(training, range(1, 2))
        train(training, range(2, 5))
        seen = [b for b in training.optimizer.buckets if all(n.startswith("last") for n in b)]
        assert training.optimizer.awaited == list(itertools.chain(*seen))
        assert seen

    # TorchScript fuses functions from its second call on, of the second model from the first.
    compare_late(scripted, Recipe(_Scripted, sgd, loss), exactly=False)


@on_ranks(2)
def test_a_use_that_nobody_sees_in_a_later_step_is_an_error():
    training = train(start(_Encoder), range(3))
    model, optimizer = training.model, training.optimizer
    scripted = _script(_plain)
    value = scripted(rows(0, 3), model.weight).sum()
    assert value.isnan()  # no value of the step before
    with pytest.raises(RuntimeError, match=r"'weight' has a gradient, but was not used .*flush"):
        value.backward()
    optimizer.flush()
    assert not scripted(rows(0, 3), model.weight).isnan().any()


@on_ranks(2)
def test_a_use_waits_for_its_bucket_only():
    """Attributes that read no element wait for nothing, nor does code in C++ that sees memory."""
    training = train(start(), range(3))
    model, optimizer = training.model, training.optimizer
    with torch._C.DisableTorchFunctionSubclass():
        for parameter in model.parameters():
            assert parameter.is_contiguous()
            assert parameter.untyped_storage().nbytes() >= 4 * parameter.numel()
            assert parameter.isnan().all()
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is not None
        assert isinstance(parameter, nn.Parameter)
        assert parameter in {parameter: 1}
    model.zero_grad()
    optimizer.zero_grad()
    assert all_awaited(optimizer)
    assert not any(bucket.open for bucket in optimizer._aiacc_exchange.buckets)
    assert functional.linear(rows(0, 0), model[0].weight).shape == (8, 40)
    assert [bucket.open for bucket in optimizer._aiacc_exchange.buckets].count(True) == 1
    assert [b for b in optimizer.buckets if not set(b) & set(optimizer.awaited)] == [["0.weight"]]
    check_same_everywhere(model)
