"""In every situation each schedule learns what one process does, or says why it cannot.

A row of `SITUATIONS` is a script, with the options that it is for; a column of `SCHEDULES` is a way
to reduce gradients. The tests of tests/parallel/decoupled have what is of that schedule alone.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from operator import methodcaller
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import aiacc.torch as hvd
from aiacc.planning.plan import Plan
from tests.support.jobs import on_ranks
from tests.support.learning.training import Alone, Recipe, Together, Training, compare, train

BUCKETS = (
    ("used.weight", "single.bias", "single.weight", "sometimes.weight", "sometimes.bias"),
    ("used.bias", "conv.weight", "conv.bias", "scale", "norm.weight", "norm.bias"),
)
SCHEDULES = {
    "all_reduce": {},
    "groups": {"groups": 2},
    "plan": {"plan": Plan("mine", BUCKETS)},
    "views": {"gradient_as_bucket_view": True, "bucket_bytes": 256},
    "plan of views": {"plan": Plan("mine", BUCKETS), "gradient_as_bucket_view": True},
    "decoupled": {"schedule": "decoupled", "bucket_bytes": 256},
    "decoupled plan": {"schedule": "decoupled", "plan": Plan("mine", BUCKETS, "decoupled")},
    "adasum": {"op": hvd.Adasum},
}


class Net(nn.Module):
    """Memory formats, dtypes, a scalar, a part that is not always used, and a frozen one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4).double()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.used = nn.Linear(4, 3).double()
        self.sometimes = nn.Linear(4, 3).double()
        self.single = nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).double().requires_grad_(False)

    def forward(self, images, sometimes):
        images = images.to(memory_format=torch.channels_last)
        hidden = self.norm(self.conv(images)).mean((2, 3)) * self.scale
        out = self.used(hidden) + (self.sometimes(hidden) if sometimes else 0)
        return self.frozen(self.single(out.float()).double() + out)


def images(rank, batch):
    generator = torch.Generator().manual_seed(100 * batch + rank)
    return torch.randn(4, 3, 5, 5, generator=generator, dtype=torch.float64)


def loss(model, rank, batch):
    """One rank uses the whole model in even batches, none in others, all in each fourth."""
    sometimes = batch % 4 == 3 or (batch % 2 == 0 and rank == hvd.size() - 1)
    return model(images(rank, batch), sometimes).pow(2).mean()


momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
NET = Recipe(Net, momentum, loss)
VIEWS = {"gradient_as_bucket_view": True}


def two_groups(kind, parameters):
    """Vectors and scalars have a learning rate of their own, and no decay."""
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.dim() > 1]},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "lr": 0.02},
    ]
    return kind(groups)


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


KINDS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
}


# --- situations


def _cleared_in_place(training):
    for batch in range(5):
        training.backward(batch)
        training.step()
        training.zero_grad(set_to_none=False)
        assert training.model.used.weight.grad is not None
        gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
        assert not any(gradient.any() for gradient in gradients)


def scheduled(training):
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 2, 0.5)
    for batch in range(5):
        train(training, [batch])
        scheduler.step()
    return training.optimizer.param_groups[0]["lr"]


_SCHEDULERS = []


def _used_before(parameters):
    """An optimizer that has state, and a scheduler of its own."""
    optimizer = two_groups(KINDS["adam"], parameters)
    _SCHEDULERS.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))
    for parameter in itertools.chain(*(group["params"] for group in optimizer.param_groups)):
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _by_two_schedulers(training):
    """That of the optimizer that was wrapped, and a later one; also after a state was loaded."""
    later = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, 0.5)
    for batch in range(3):
        train(training, [batch])
        if batch == 1:
            training.load(training.state())
        _SCHEDULERS[-1].step()
        later.step()
    rates = [group["lr"] for group in training.optimizer.param_groups]
    assert rates == pytest.approx([0.01 / 64, 0.02 / 64])
    return training.state()["state"]


def _accumulated(passes, training):
    for step in range(4):
        training.zero_grad(set_to_none=step % 2 == 0)
        for number in range(passes):
            training.backward(passes * step + number)
        training.step()


def _other_numbers_of_passes(training):
    """Fewer than announced: the step takes what there is."""
    for step, (announced, passes) in enumerate([(2, 2), (1, 1), (3, 1), (3, 2)]):
        if not isinstance(training, Alone):
            training.optimizer.set_backward_passes_per_step(announced)
            assert training.optimizer.backward_passes_per_step == announced
        training.zero_grad()
        for number in range(passes):
            training.backward(2 * step + number)
        training.step()


def _penalised(training):
    """The loss of the second pass has the gradients of the first one in it."""
    for step in range(4):
        training.zero_grad(set_to_none=step == 2)
        training.backward(step, create_graph=True)

        def penalised(model, rank, batch):
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            return loss(model, rank, batch) + sum(gradient.pow(2).sum() for gradient in gradients)

        training.backward(10 + step, loss=penalised)
        training.step()


def _by_closures(training):
    for batch in range(3):
        value = training.step_by_closure(batch)
        assert value.item() > 0


def _clipped(passes, training):
    norms = []
    for step, (limit, order) in enumerate([(0.05, 2.0), (0.01, float("inf")), (1e6, 2), (0.1, 1)]):
        training.zero_grad()
        for number in range(passes):
            training.backward(passes * step + number)
        norms.append(training.clip(limit, order))
        training.step()
    return norms


def _frozen_for_a_while(set_to_none, training):
    """With a gradient of zeros torch's optimizers go on with momentum and decay."""
    for batch in range(6):
        training.model.used.requires_grad_(batch not in (2, 3))
        training.zero_grad(set_to_none)
        training.backward(batch)
        training.step()


def _dropped(synchronizes, training):
    """A gradient that somebody drops leaves its parameter as it is, momentum and decay or not."""
    weight = training.model.used.weight
    for batch in range(6):
        training.zero_grad()
        # Of everything where all of it is dropped: no rank can drop what it has not got.
        training.backward(batch if batch < 3 else 4 * batch + 3)
        if synchronizes:
            training.synchronize()
        before = weight.detach().clone()
        for parameter in training.model.parameters():
            if batch == 4 or (batch < 3 and parameter is weight):
                training.drop(parameter)
        training.step()
        assert torch.equal(weight, before) == (batch < 3 or batch == 4)


def _thawed(training):
    """A part that was frozen when the optimizer was wrapped."""
    for batch in range(5):
        training.model.frozen.requires_grad_(batch > 1)
        train(training, [batch])


def _added(training):
    """Parameters that no group has had: those of `single`, which are the last but the frozen."""
    added = training.model.single.requires_grad_(False)
    train(training, range(3))
    group = {"params": list(added.requires_grad_(True).parameters()), "lr": 0.05}
    training.optimizer.add_param_group(group)
    train(training, range(3, 7))


def _shut_down_in_a_step(training):
    training.backward(0)
    hvd.shutdown()
    training.step()


def _in_several_jobs(training):
    """Shutdowns between and within steps."""
    train(training, range(2))
    if isinstance(training, Together):
        training.refused(_shut_down_in_a_step, ".")  # where, depends on how fast the others are
        hvd.shutdown()
        hvd.init()
    train(training, range(2, 4))


def _loaded(training):
    """The state of before, while gradients are under way, which are dropped."""
    train(training, range(2))
    saved = training.state()
    train(training, [2])
    training.backward(3)
    training.load(saved)
    train(training, range(4, 6))
    return training.state()  # as a plain optimizer has it


# --- gradients that are not finite on one rank


def _bad(value, model, rank, batch):
    """A gradient that is not finite, in one element: with the decoupled schedule rank 0 has it."""
    is_bad = (rank, batch) == (hvd.size() - 1, 2)
    return loss(model, rank, batch) + (model.conv.weight[0, 0, 0, 0] * value if is_bad else 0)


def _skipped(value, training, early=None, unscales=False, late=False):
    """Steps of a scaler, of which one is skipped on every rank.

    Gradients are clipped ``early``, by a norm of that order, or ``late``, after they are unscaled.
    """
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    for batch in range(5):
        before = [parameter.detach().clone() for parameter in training.model.parameters()]
        training.zero_grad()
        training.backward(batch, loss=partial(_bad, value), scaler=scaler)
        if early is not None:
            norm = training.clip(0.02 * scaler.get_scale(), early)
            assert bool(norm.isfinite()) == (batch != 2)
        if unscales:
            training.unscale(scaler)
        if late:
            training.clip(0.05)
        training.step(scaler)
        pairs = zip(before, training.model.parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs) == (batch == 2)
    assert scaler.get_scale() == 4.0


# --- what is told on every rank, and leaves no trace


def _replace(training):
    for parameter in training.model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad / 2


def _write_to_data(training):
    training.model.used.weight.grad.data.clamp_(-1e-3, 1e-3)


def _drop(training):
    training.model.used.weight.grad = None


def _written(passes, synchronizes, writes, training):
    """What is written while gradients travel may be lost, or reach some ranks only."""

    def refused(training, write, then):
        for _ in range(passes):
            training.backward(3)  # on every rank a gradient of everything
        if synchronizes and isinstance(training, Together):
            training.optimizer.synchronize()
        write(training)
        then(training)

    for write in writes:
        what = {_replace: "replaced", _drop: "dropped"}.get(write, "written to")
        match = rf"was {what} between .* optimizer.synchronize|were written to after backward"
        training.refused(partial(refused, write=write, then=Training.step), match)
        training.zero_grad()
    _accumulated(passes, training)
    # What is loaded drops them.
    refused(training, writes[0], lambda training: training.load(training.state()))
    _accumulated(passes, training)


def _checkpointed(model, rank, batch):
    """A module that is called twice, whose backward passes are two for torch."""
    hidden = images(rank, batch).mean((2, 3)).float().requires_grad_()
    for _ in range(2):
        hidden = checkpoint(model.single, hidden, use_reentrant=True)
    return hidden.sum()


def _misused(training):
    def clear_too_early(training):
        training.backward(3)
        training.zero_grad()

    text = r"backward_passes_per_step=1 .* optimizer.zero_grad\(\) .* use_reentrant=False"
    for _ in range(2):
        training.refused(clear_too_early, "(before|and before) step")
        training.refused(methodcaller("backward", 3), text)
        # By that pass, up to its error.
        training.refused(Training.step, "written to")
        training.zero_grad()
        train(training, range(2))
    training.refused(methodcaller("backward", 3, loss=_checkpointed), text)
    training.load(training.state())  # drops what has come of it
    train(training, range(2))


class Situation(NamedTuple):
    """A row: options of the optimizer, what it wraps, and schedules that are left out."""

    script: Callable[[Training], object]
    options: Mapping[str, Any] = MappingProxyType({})
    make_optimizer: Callable[[Any], torch.optim.Optimizer] = momentum
    without: tuple[str, ...] = ()
    #: Whether the decoupled schedule adds up a norm in another order than one process.
    clips: bool = False


_DECOUPLED = (*(name for name in SCHEDULES if name.startswith("decoupled")),)
_OTHERS = (*(name for name in SCHEDULES if name not in _DECOUPLED),)
_OF_GRADIENTS = (*(name for name in _OTHERS if name != "adasum"),)
_INF, _NAN = float("inf"), float("nan")
_TWO = {"backward_passes_per_step": 2}
_THREE = {"backward_passes_per_step": 3}

OF_ALL = {
    **{
        f"{kind} in two groups": Situation(scheduled, {}, partial(two_groups, make))
        for kind, make in KINDS.items()
    },
    "used before": Situation(_by_two_schedulers, {}, _used_before),
    "three passes": Situation(partial(_accumulated, 3), _THREE),
    "other numbers of passes": Situation(_other_numbers_of_passes),
    "a penalty of gradients": Situation(_penalised, _TWO),
    "a penalty, and a pass too few": Situation(_penalised, _THREE),
    "closures": Situation(_by_closures),
    "clipped": Situation(partial(_clipped, 1), clips=True),
    "clipped after two passes": Situation(partial(_clipped, 2), _TWO, clips=True),
    "frozen for a while": Situation(partial(_frozen_for_a_while, True)),
    "dropped": Situation(partial(_dropped, False), without=_OF_GRADIENTS),
    "dropped after synchronize": Situation(partial(_dropped, True)),
    "loaded": Situation(_loaded),
}
_FUSED = partial(momentum, fused=True)
_WRITES = [lambda of: nn.utils.clip_grad_norm_(of.model.parameters(), 1e-3), _replace]
#: Not of Adasum: it reduces changes, not gradients, and each rank is alone with its scaler.
SITUATIONS = {
    **OF_ALL,
    "sum": Situation(partial(_accumulated, 1), {"op": hvd.Sum}),
    "predivided": Situation(partial(_accumulated, 1), {"gradient_predivide_factor": 2.0}),
    "cleared in place": Situation(_cleared_in_place),
    "frozen for a while, with zeros": Situation(partial(_frozen_for_a_while, False)),
    "scaled": Situation(partial(_skipped, _INF)),
    "scaled by the optimizer": Situation(partial(_skipped, _NAN), {}, _FUSED),
    "unscaled": Situation(partial(_skipped, _INF, unscales=True)),
    "unscaled and clipped": Situation(
        partial(_skipped, _INF, unscales=True, late=True), clips=True
    ),
    **{
        f"clipped by norm {order:g} of {value:g}{' and unscaled' * unscales}": Situation(
            partial(_skipped, value, early=order, unscales=unscales), clips=True
        )
        for value, order in [(_INF, 2.0), (_NAN, 2.0), (_INF, _INF)]
        for unscales in (True, False)
    },
    "written to": Situation(partial(_written, 1, False, _WRITES)),
    "written to between passes": Situation(partial(_written, 2, False, _WRITES[::-1]), _TWO),
    "dropped while they travel": Situation(
        partial(_written, 1, False, [_drop]), without=_DECOUPLED
    ),
    "written to after synchronize": Situation(
        partial(_written, 1, True, [*_WRITES, _write_to_data]), without=_OTHERS
    ),
    "misused": Situation(_misused),
    "given other memory": Situation(scheduled, {}, partial(_Assigns, lr=0.5)),
    "thawed": Situation(_thawed, without=_DECOUPLED),
    "a group added": Situation(
        _added, {}, lambda of: momentum([*of][:-4]), without=(*_DECOUPLED, "plan", "plan of views")
    ),
    "several jobs": Situation(_in_several_jobs, without=_DECOUPLED),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@on_ranks(2, pytest.param(3, marks=pytest.mark.nightly), each={"name": SITUATIONS})
def test_every_situation_with(schedule, name):
    row = SITUATIONS[name]
    is_fit = schedule != "adasum" or (name in OF_ALL and hvd.size() != 3)
    if schedule in row.without or not is_fit:
        return
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "`torch.cpu.amp|You are using `torch.load`")  # of 2.4
    warnings.filterwarnings("ignore", "plan: no gradient of 'sometimes")
    warnings.filterwarnings("ignore", "Using backward.* with create_graph=True")
    options = {**SCHEDULES[schedule], **row.options}
    exactly = not (row.clips and schedule in _DECOUPLED)
    recipe, late = Recipe(Net, row.make_optimizer, loss), schedule == "decoupled plan"
    compare(row.script, recipe, exactly=exactly, late=late, **options)
