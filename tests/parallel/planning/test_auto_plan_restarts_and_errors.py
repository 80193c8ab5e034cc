"""`plan="auto"` where a job goes another way than from the first step to the last."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

import aiacc.torch as hvd
from aiacc import _core
from aiacc.torch import auto_plan
from aiacc.torch.units import units
from tests.parallel.planning.test_auto_plan import NET, STEPS, net, start
from tests.support.jobs import on_ranks
from tests.support.learning.training import Alone, Together, check_learned, compare, train


def _keep_gradients(training, steps):
    for step in range(steps):
        training.zero_grad(set_to_none=False)
        training.backward(step)
        training.step()


@on_ranks(2)
def test_gradients_that_stay_through_all_plans():
    """Gradients of former buckets are gradients of their own again."""
    training = start(None, gradient_as_bucket_view=True)
    _keep_gradients(training, 4)
    hvd.shutdown()
    hvd.init()
    _keep_gradients(training, 4)
    gradient = training.model[0].weight.grad
    assert gradient.untyped_storage().nbytes() > gradient.nbytes  # it is a part of a bucket
    training = start(gradient_as_bucket_view=True)
    _keep_gradients(training, STEPS)
    assert training.optimizer.plan_phase == "watch"


@pytest.mark.parametrize("plan", [None, "single"])
@on_ranks(2)
def test_buckets_that_a_rank_has_no_memory_for_have_none_anywhere(plan):
    def storage(parameters):
        raise torch.OutOfMemoryError("as of a GPU")

    def trained(training):
        if isinstance(training, Alone) or hvd.rank() == 0:
            return train(training, range(20))
        reducer = training.optimizer._reducer
        reducer.options = reducer.options._replace(storage=storage)
        with pytest.warns(UserWarning, match=r"no memory for the buckets .*as of a GPU"):
            return train(training, range(20))

    optimizer = compare(trained, NET, plan=plan, gradient_as_bucket_view=True).optimizer
    assert [len(bucket) for bucket in optimizer.buckets] == [8]
    assert optimizer._reducer.buckets[0].flat is None


@on_ranks(1)
def test_a_job_that_starts_anew_watches_as_new_ranks_do():
    """A new worker has not looked at its steps before."""
    training = start()
    optimizer = training.optimizer
    optimizer._plan._watched *= 4  # as after two changes
    hvd.shutdown()
    hvd.init()
    assert optimizer._plan._watched == auto_plan.WATCHED


@pytest.mark.parametrize("failing", [0, 1])
@on_ranks(2)
def test_a_rank_whose_times_cannot_be_read_ends_its_steps(failing):
    training = start("single")
    optimizer = training.optimizer
    if hvd.rank() == failing:
        optimizer._plan._recorder._between = None
        with pytest.warns(UserWarning, match="the recorded times cannot be read"):
            train(training, range(20))
    else:
        train(training, range(20))
    assert [len(bucket) for bucket in optimizer.buckets] == ([1] * 8 if failing == 0 else [8])


@on_ranks(2)
def test_parameters_that_need_gradients_from_the_first_step_on_are_planned():
    training = start("single", lambda: net().requires_grad_(False))
    training.model.requires_grad_(True)
    train(training, range(20))
    assert [len(bucket) for bucket in training.optimizer.buckets] == [8]


@on_ranks(2)
def test_another_optimizer_leaves_units_as_one_has_chosen_them():
    unit = _core.stats()["unit_bytes"]
    first = train(start(), range(STEPS))
    units.grow(8, first.optimizer._plan, hvd.global_process_set)  # as its search may have chosen
    second = train(start(), range(STEPS))
    assert _core.stats()["unit_bytes"] == 8 * unit
    del first, second
    third = start().optimizer
    hvd.barrier()
    hvd.barrier()
    assert _core.stats()["unit_bytes"] == unit
    assert not third._plan._seconds


def _pickled(both):
    return pickle.loads(pickle.dumps(both))


@on_ranks(2)
def test_a_copy_plans_anew_once_it_steps():
    hooks = nn.modules.module._global_forward_hooks
    training = train(start("single"), range(20))
    for duplicate in (copy.deepcopy, _pickled):
        other = Together(*duplicate((training.model, training.optimizer)), training.loss)
        assert not hooks  # one that is only kept costs nothing
        train(training, range(3))
        train(other, range(3))
        check_learned(other.model, training.model, exactly=True)
        assert (len(hooks), len(other.optimizer.buckets)) == (1, 8)
        train(other, range(10))
        assert (len(hooks), len(other.optimizer.buckets)) == (0, 1)


@on_ranks(2)
def test_an_optimizer_that_is_dropped_leaves_nothing():
    hooks = nn.modules.module._global_forward_hooks
    before = len(hooks)
    gc.disable()  # nothing may wait for it
    optimizer = start().optimizer
    assert (len(auto_plan._live), len(hooks)) == (1, before + 1)
    del optimizer
    assert (len(auto_plan._live), len(hooks)) == (0, before)
    hvd.shutdown()
    hvd.init()
    assert len(hooks) == before
