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
from tests.parallel.planning.test_auto_plan import STEPS, _buckets, _expected, _net, _train, _wrap
from tests.support.ranks import run_ranks


def _keep_gradients(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        model(torch.ones(2, 8).double()).sum().backward()
        optimizer.step()


def _views():
    """Gradients of former buckets are gradients of their own again."""
    hvd.init()
    model = _net()
    optimizer = _wrap(model, None, gradient_as_bucket_view=True)
    _keep_gradients(model, optimizer, 4)
    hvd.shutdown()
    hvd.init()
    _keep_gradients(model, optimizer, 4)
    assert any(bucket.flat is not None for bucket in optimizer._reducer.buckets)
    model = _net()
    optimizer = _wrap(model, gradient_as_bucket_view=True)
    _keep_gradients(model, optimizer, STEPS)
    assert optimizer._plan._phase == optimizer._plan._watch
    hvd.shutdown()


def test_gradients_that_stay_through_all_plans():
    run_ranks(2, _views)


def _no_memory(plan):
    hvd.init()
    expected = _expected(range(20))
    model = _net()
    optimizer = _wrap(model, plan, gradient_as_bucket_view=True)
    if hvd.rank() == 1:

        def storage(parameters):
            raise torch.OutOfMemoryError("as of a GPU")

        optimizer._reducer.options = optimizer._reducer.options._replace(storage=storage)
        with pytest.warns(UserWarning, match=r"no memory for the buckets .*as of a GPU"):
            found = _train(model, optimizer, range(20), [hvd.rank()])
    else:
        found = _train(model, optimizer, range(20), [hvd.rank()])
    torch.testing.assert_close(found, expected)
    assert [len(bucket) for bucket in _buckets(optimizer)] == [8]
    assert optimizer._reducer.buckets[0].flat is None
    hvd.shutdown()


@pytest.mark.parametrize("plan", [None, "single"])
def test_buckets_that_a_rank_has_no_memory_for_have_none_anywhere(plan):
    run_ranks(2, _no_memory, plan)


def _anew():
    """A new worker has not looked at its steps before."""
    hvd.init()
    model = _net()
    optimizer = _wrap(model)
    optimizer._plan._watched *= 4  # as after two changes
    hvd.shutdown()
    hvd.init()
    assert optimizer._plan._watched == auto_plan.WATCHED
    hvd.shutdown()


def test_a_job_that_starts_anew_watches_as_new_ranks_do():
    run_ranks(1, _anew)


def _refused():
    hvd.init()
    model = _net()
    optimizer = _wrap(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 8).double()).sum().backward()
        if step == 5 and hvd.rank() == 0:
            model[2].weight.grad.mul_(1.0)  # it has left
            with pytest.raises(ValueError, match="was written to between backward"):
                optimizer.step()
        else:
            optimizer.step()
    assert optimizer._plan._phase == optimizer._plan._watch
    hvd.shutdown()


def test_a_step_that_one_rank_refuses_counts():
    run_ranks(2, _refused)


def _unreadable(failing):
    hvd.init()
    model = _net()
    optimizer = _wrap(model, "single")
    if hvd.rank() == failing:
        optimizer._plan._recorder._between = None
        with pytest.warns(UserWarning, match="the recorded times cannot be read"):
            _train(model, optimizer, range(20), [hvd.rank()])
    else:
        _train(model, optimizer, range(20), [hvd.rank()])
    assert [len(bucket) for bucket in _buckets(optimizer)] == ([1] * 8 if failing == 0 else [8])
    hvd.shutdown()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_whose_times_cannot_be_read_ends_its_steps(failing):
    run_ranks(2, _unreadable, failing)


def _thawed():
    hvd.init()
    model = _net()
    model.requires_grad_(False)
    optimizer = _wrap(model, "single")
    model.requires_grad_(True)
    _train(model, optimizer, range(20), [hvd.rank()])
    assert [len(bucket) for bucket in _buckets(optimizer)] == [8]
    hvd.shutdown()


def test_parameters_that_need_gradients_from_the_first_step_on_are_planned():
    run_ranks(2, _thawed)


def _units_stay():
    hvd.init()
    unit = _core.stats()["unit_bytes"]
    first, second = _net(), _net()
    optimizers = [_wrap(first)]
    _train(first, optimizers[0], range(STEPS), [hvd.rank()])
    units.grow(8, optimizers[0]._plan, hvd.global_process_set)  # as its search may have chosen
    optimizers.append(_wrap(second))
    _train(second, optimizers[1], range(STEPS), [hvd.rank()])
    assert _core.stats()["unit_bytes"] == 8 * unit
    optimizers.clear()
    third = _wrap(first)
    hvd.barrier()
    hvd.barrier()
    assert _core.stats()["unit_bytes"] == unit
    assert not third._plan._seconds
    hvd.shutdown()


def test_another_optimizer_leaves_units_as_one_has_chosen_them():
    run_ranks(2, _units_stay)


def _pickled(both):
    return pickle.loads(pickle.dumps(both))


def _copied():
    hvd.init()
    hooks = nn.modules.module._global_forward_hooks
    model = _net()
    optimizer = _wrap(model, "single")
    _train(model, optimizer, range(20), [hvd.rank()])
    for duplicate in (copy.deepcopy, _pickled):
        other_model, other = duplicate((model, optimizer))
        assert not hooks  # one that is only kept costs nothing
        expected = [p.clone() for p in _train(model, optimizer, range(3), [hvd.rank()])]
        found = _train(other_model, other, range(3), [hvd.rank()])
        torch.testing.assert_close(found, expected)
        assert (len(hooks), len(_buckets(other))) == (1, 8)
        _train(other_model, other, range(10), [hvd.rank()])
        assert (len(hooks), len(_buckets(other))) == (0, 1)
    hvd.shutdown()


def test_a_copy_plans_anew_once_it_steps():
    run_ranks(2, _copied)


def _dropped():
    hvd.init()
    hooks = nn.modules.module._global_forward_hooks
    before = len(hooks)
    gc.disable()  # nothing may wait for it
    optimizer = _wrap(_net())
    assert (len(auto_plan._live), len(hooks)) == (1, before + 1)
    del optimizer
    assert (len(auto_plan._live), len(hooks)) == (0, before)
    hvd.shutdown()
    hvd.init()
    assert len(hooks) == before
    hvd.shutdown()


def test_an_optimizer_that_is_dropped_leaves_nothing():
    run_ranks(2, _dropped)
