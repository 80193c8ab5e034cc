"""DistributedOptimizer around every optimizer of torch, its copies, and parameters that change."""

import copy
import inspect
from functools import partial

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from tests.support.jobs import on_ranks
from tests.support.learning.training import (
    DUPLICATES,
    Alone,
    Recipe,
    Together,
    check_learned,
    check_same_everywhere,
    compare,
    flat,
    together,
    train,
)

CLASSES = sorted(
    name
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and name != "Optimizer"
)
VIEWS = {"gradient_as_bucket_view": True}


def _model(name):
    torch.manual_seed(0)
    if name == "SparseAdam":
        return nn.Embedding(9, 3, sparse=True).double()
    layers = [nn.Linear(3, 4, bias=name != "Muon"), nn.Tanh(), nn.Linear(4, 2, bias=name != "Muon")]
    return nn.Sequential(*layers).double()


def _loss(model, rank, batch):
    generator = torch.Generator().manual_seed(100 * batch + rank)
    if isinstance(model, nn.Embedding):
        entries = torch.randint(9, (3 + rank,), generator=generator)
        return model(entries).pow(2).sum()
    inputs = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    return (model(inputs) - 1).pow(2).mean()


def _optimizer(name, parameters):
    if name == "LBFGS":
        options = {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"}
        return torch.optim.LBFGS(parameters, **options)
    return getattr(torch.optim, name)([{"params": [p]} for p in parameters], lr=0.05)


def _recipe(name):
    return Recipe(partial(_model, name), partial(_optimizer, name), _loss)


def _steps(name, training):
    assert type(training.optimizer).__name__ == name
    for batch in range(4):
        if name == "LBFGS" or batch % 2:
            training.step_by_closure(batch)
        else:
            train(training, [batch])


@on_ranks(2, 3)
def test_every_optimizer_of_torch():
    assert len(CLASSES) >= 13
    for name in CLASSES:
        # LBFGS decides by losses, whose sums have an order of their own.
        options = {"exactly": name not in ("LBFGS", "SparseAdam")}
        model = compare(partial(_steps, name), _recipe(name), **options).model
        assert not torch.equal(flat(model), flat(_model(name))), name
        if name != "SparseAdam":
            compare(partial(_steps, name), _recipe(name), **VIEWS, **options)


@pytest.mark.parametrize("options", [{}, VIEWS])
@on_ranks(2, 3)
def test_copies_reduce_the_gradients_of_their_own_parameters(options):
    def copied(duplicate, training):
        train(training, range(2))
        original = training.model, training.optimizer
        before = flat(original[0]).clone()
        if hvd.rank() == 0:
            copy.deepcopy(original)  # as for an average that one rank has
        training.model, training.optimizer = duplicate(original)
        assert type(training.optimizer).__name__ == "Adam"
        if isinstance(training, Together):
            names = [list(of._parameter_names.values()) for of in (original[1], training.optimizer)]
            assert names[0] == names[1]
        train(training, range(2, 4))
        assert torch.equal(flat(original[0]), before)
        return list(training.model.parameters())

    for duplicate in DUPLICATES.values():
        compare(partial(copied, duplicate), _recipe("Adam"), **options)


# --- parameters that are frozen, unused, added


def _parts():
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(2, 2).double() for _ in range(3))


def _sum_of(used, model, rank, batch):
    torch.manual_seed(batch)
    inputs = torch.randn(3, 2, dtype=torch.float64)
    return sum((model[n](inputs).pow(2).sum() for n in used(rank)), torch.zeros(()))


def _first_two(parameters):
    return torch.optim.SGD(list(parameters)[:4], 0.1, momentum=0.9)


def _changing(frozen, training):
    """Which parts have gradients differs between steps and ranks; frozen ones stay as they are."""
    parts = training.model
    for step in range(9):
        parts[0].requires_grad_(step not in frozen)
        if step == frozen[0]:
            before = parts[0].weight.clone()
        if step == frozen[-1] + 1:
            assert torch.equal(parts[0].weight, before)
        if step == 6:
            training.optimizer.add_param_group({"params": list(parts[2].parameters()), "lr": 0.05})
        live = [0, 1, 2] if step >= 6 else [1] if step in frozen else [0, 1]
        used = lambda rank, live=live, step=step: live[(rank + step) % len(live) :]  # noqa: E731
        training.zero_grad(set_to_none=step % 2 == 0 or isinstance(training, Alone))
        training.backward(step, loss=partial(_sum_of, used))
        training.step()


def _partly_frozen():
    parts = _parts()
    parts[0].requires_grad_(False)
    return parts


def _frozen_on_one_rank(**options):
    sgd = partial(torch.optim.SGD, lr=0.1)
    training = together(Recipe(_parts, sgd, partial(_sum_of, lambda rank: [0, 1])), **options)
    parts = training.model
    for step in range(3):
        parts[0].requires_grad_(step == 0 or hvd.rank() > 0)
        before = parts[0].weight.detach().clone()
        train(training, [step])
        assert not torch.equal(parts[0].weight, before)
        check_same_everywhere(parts)


@on_ranks(2, 3)
def test_changing_parameters():
    for options in ({}, {**VIEWS, "bucket_bytes": 64}):
        for parts, frozen in ((_parts, (2, 3, 4)), (_partly_frozen, (0, 1))):
            recipe = Recipe(parts, _first_two, _sum_of)
            compare(partial(_changing, frozen), recipe, **options)
        _frozen_on_one_rank(**options)


class _Counting(torch.optim.Optimizer):
    """Has state that is no tensor, as optimizers of other packages do."""

    is_elementwise = True

    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                entries = self.state[parameter]
                entries["step"] = entries.get("step", 0) + 1
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"] / entries["step"])


class _LoadsInPlace(_Counting):
    """Loads into the dictionaries that there are."""

    def load_state_dict(self, state_dict):
        parameters = [p for group in self.param_groups for p in group["params"]]
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({**saved, "params": group["params"]})
        self.state.clear()
        self.state.update((parameters[n], dict(of)) for n, of in state_dict["state"].items())


@pytest.mark.parametrize("kind", [_Counting, _LoadsInPlace, torch.optim.SparseAdam])
@on_ranks(2)
def test_state_that_is_no_tensor_is_broadcast_and_loaded(kind):
    def steps(training):
        train(training, range(2))
        if isinstance(training, Together):
            if hvd.rank() == 1 and not hasattr(training.optimizer, "consolidate_state_dict"):
                for entries in training.optimizer.state.values():
                    entries["step"] = 9
            hvd.broadcast_optimizer_state(training.optimizer, 0)
        training.load(training.state())
        train(training, [2])
        return [entries["step"] for entries in training.state()["state"].values()]

    sparse = kind is torch.optim.SparseAdam
    for options in ({},) if sparse else ({}, {"op": hvd.Adasum}, {"schedule": "decoupled"}):
        recipe = Recipe(partial(_model, kind.__name__), kind, _loss)
        compare(steps, recipe, exactly=not sparse, **options)


@on_ranks(2)
def test_the_state_of_a_plain_optimizer_is_that_of_a_distributed_one():
    """And is loaded in either."""
    training = train(together(_recipe("Adam")), range(2))
    model = copy.deepcopy(training.model)
    plain = Alone(model, _optimizer("Adam", model.parameters()), _loss)
    plain.load(training.state())
    train(plain, range(2, 4))
    train(training, range(2, 4))
    check_learned(training.model, plain.model, exactly=True)
