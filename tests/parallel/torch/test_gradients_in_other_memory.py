"""Parameters and gradients that are given other memory, as Module.to does, and .data = does."""

from functools import partial

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from tests.support.jobs import on_ranks
from tests.support.learning.training import Recipe, Together, compare, together, train

SCHEDULES = {
    "all_reduce": {},
    "views": {"gradient_as_bucket_view": True},
    "groups": {"num_groups": 1},
    "decoupled": {"schedule": "decoupled", "bucket_bytes": 1000},
}


def _net(memory_format=torch.contiguous_format):
    """In float64, so that orders of sums, which memory formats change, are within tolerances."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.Flatten(1), nn.Linear(96, 8)
    model = nn.Sequential(*layers, nn.Linear(8, 8))
    return model.to(torch.float64, memory_format=memory_format)


def _loss(model, rank, batch):
    generator = torch.Generator().manual_seed(10 * batch + rank)
    inputs = torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)
    return model(inputs.to(model[0].weight.dtype)).pow(2).mean()


ADAM = Recipe(_net, partial(torch.optim.Adam, lr=0.01), _loss)
SGD = Recipe(_net, partial(torch.optim.SGD, lr=0.1, momentum=0.9), _loss)


def _channels_last(model):
    model.to(memory_format=torch.channels_last)


def _contiguous(model):
    model.to(memory_format=torch.contiguous_format)


def _other_format(model):
    is_last = model[2].weight.is_contiguous(memory_format=torch.channels_last)
    (_contiguous if is_last else _channels_last)(model)


def _scale_parameters(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.9


def _scale_gradients(model):
    for parameter in model.parameters():
        parameter.grad.data = parameter.grad.data * 0.5


def _squares(model):
    shapes = ((p, p.shape) for p in model.parameters())
    return [p for p, shape in shapes if len(shape) > 1 and shape[-1] == shape[-2]]


def _transpose_parameters(model):
    """The same memory in another form."""
    for parameter in _squares(model):
        parameter.data = parameter.data.mT


def _transpose_gradients(model):
    for parameter in _squares(model):
        parameter.grad.data = parameter.grad.data.mT


def _changed(change, when, set_to_none, training):
    """Five steps of two passes each, with the change in the third."""
    for step in range(5):
        training.zero_grad(set_to_none)
        for number in range(2):
            training.backward(2 * step + number)
            if (step, number, when) == (2, 0, "passes"):
                training.change(change)
        if (step, when) == (2, "synchronize"):
            training.synchronize()
            change(training.model)
        training.step()
        if (step, when) == (2, "step"):
            change(training.model)


#: After what there is other memory.
CHANGES = {
    "step": [_channels_last, _contiguous, _scale_parameters, _transpose_parameters],
    "passes": [_channels_last, _contiguous, _scale_gradients, _transpose_gradients],
    "synchronize": [_scale_parameters, _transpose_parameters],
}


@on_ranks(2, each={"when": CHANGES, "schedule": SCHEDULES, "set_to_none": [True, False]})
def test_training_is_plain_with_other_memory(when, schedule, set_to_none):
    options = {"backward_passes_per_step": 2, **SCHEDULES[schedule]}
    changes = [*CHANGES[when]]
    if when == "synchronize" and schedule != "decoupled":  # there gradients are on their way
        changes += [_channels_last, _scale_gradients]
    for change in changes:
        before = torch.channels_last if change is _contiguous else torch.contiguous_format
        situation = partial(_changed, change, when, set_to_none)
        recipe = ADAM._replace(make_model=partial(_net, before))
        compare(situation, recipe, exactly=False, **options)


@on_ranks(2, each={"schedule": SCHEDULES, "change": [_other_format, _scale_gradients]})
def test_gradients_that_get_other_memory_on_their_way_are_an_error(change, schedule):
    """In the first step and in later ones, on every rank, and no parameter is changed."""

    def moved(synchronizes, training):
        if synchronizes:
            training.optimizer.synchronize()
        change(training.model)
        training.step()

    def steps(training):
        for batch in range(3):
            # Views keep their format when the step fails: they are changed once.
            ways = {"decoupled": (False, True), "views": (False,) * (batch == 2)}
            for synchronizes in ways.get(schedule, (False,)):
                if isinstance(training, Together):
                    training.backward(batch)
                training.refused(partial(moved, synchronizes), "given other memory")
                training.zero_grad(set_to_none=False)
            training.backward(batch)
            training.step()
            training.zero_grad(set_to_none=False)

    compare(steps, SGD, exactly=False, **SCHEDULES[schedule])


@on_ranks(2, each={"schedule": SCHEDULES, "set_to_none": [True, False]})
def test_a_model_of_another_dtype_is_an_error(set_to_none, schedule):
    def start():
        training = train(together(SGD, **SCHEDULES[schedule]), [0])
        training.zero_grad(set_to_none)
        return training

    training = start()
    training.backward(2)
    training.model.float()
    with pytest.raises(ValueError, match=r"given other memory|is now of torch.float32"):
        training.optimizer.step()
    if schedule == "views":
        training = start()
        training.model.float()
        with pytest.raises(ValueError, match=r"is of torch.float32 on cpu now \(expected torch"):
            training.backward(2)


@on_ranks(2, each={"schedule": SCHEDULES})
def test_a_new_job_of_a_model_in_another_format(schedule):
    """Formats of another job are those of its model, for the state as well."""

    def two_jobs(training):
        train(training, range(3))
        if isinstance(training, Together):
            training.state()  # collected for the next job
            _channels_last(training.model)
            hvd.barrier()
            hvd.shutdown()
            hvd.init()
        train(training, range(3, 6))

    compare(two_jobs, ADAM, exactly=False, **SCHEDULES[schedule])
