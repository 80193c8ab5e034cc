"""Optimizers that plan from their own steps."""

from __future__ import annotations

import contextlib
import io
import os
import re

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

import aiacc
import aiacc.torch as hvd
from aiacc import _core
from aiacc.planning import search
from aiacc.torch import auto_plan
from aiacc.torch.reducer.consensus import least_waiting
from aiacc.torch.units import units
from tests.support.ranks import run_ranks

#: Steps after which every search is over.
STEPS = 13 + 6 * 13


def _net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8).double() for _ in range(4)))


def _train(model, optimizer, steps, ranks):
    for step in steps:
        optimizer.zero_grad()
        for rank in ranks:
            generator = torch.Generator().manual_seed(100 * step + rank)
            batch = torch.randn(4, 8, generator=generator, dtype=torch.float64)
            (model(batch).pow(2).mean() / len(ranks)).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def _wrap(model, plan="auto", **arguments):
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return hvd.DistributedOptimizer(sgd, model.named_parameters(), plan=plan, **arguments)


def _buckets(optimizer):
    names = optimizer._reducer._gradients.names
    return [tuple(names[index] for index in b.members) for b in optimizer._reducer.buckets]


def _expected(steps):
    alone = _net()
    return _train(alone, torch.optim.SGD(alone.parameters(), 0.1), steps, range(hvd.size()))


def _same_everywhere(value):
    assert len(set(map(str, hvd.allgather_object(value)))) == 1


def _plans(plan, view):
    torch.set_num_threads(1)
    hvd.init()
    expected = _expected(range(STEPS))
    model = _net()
    optimizer = _wrap(model, plan, gradient_as_bucket_view=view)
    found = _train(model, optimizer, range(STEPS), [hvd.rank()])
    torch.testing.assert_close(found, expected)
    assert optimizer._plan._phase != optimizer._plan._record
    assert optimizer._plan._phase != optimizer._plan._visit
    _same_everywhere(_buckets(optimizer))
    nothing = nn.ParameterList([nn.Parameter(torch.zeros(0))])
    empty = _wrap(nothing, plan)
    for _ in range(14):
        nothing[0].sum().backward()
        empty.step()
    assert empty._plan._phase != empty._plan._record
    hvd.shutdown()


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("plan", ["auto", "optimal"])
def test_training_is_the_same_whatever_is_tried(plan, view):
    run_ranks(2, _plans, plan, view)


def _says():
    hvd.init()
    model = _net()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        _train(model, _wrap(model, "single"), range(20), [hvd.rank()])
    line = (
        r"aiacc: plan='single': single with 1 bucket predicted .* s \(before: no plan .* s a step"
    )
    assert len(re.findall(line, said.getvalue())) == (1 if hvd.rank() == 0 else 0)
    hvd.shutdown()


def test_the_first_rank_says_what_was_found():
    run_ranks(2, _says)


def _joins():
    hvd.init()
    model = _net()
    optimizer = _wrap(model)
    # The second rank has less data in each epoch: ranks end different numbers of steps.
    for epoch in range(4):
        own = 30 if hvd.rank() == 0 else 30 - 5 * (epoch + 1)
        _train(model, optimizer, range(own), [hvd.rank()])
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), 0)
    _train(model, optimizer, range(STEPS), [hvd.rank()])
    _same_everywhere(_buckets(optimizer))
    hvd.shutdown()


def test_ranks_that_join_early_count_anew():
    run_ranks(2, _joins)


def _joins_long_before():
    hvd.init()
    model = _net()
    optimizer = _wrap(model)
    if hvd.rank() == 0:
        _train(model, optimizer, range(50), [0])
        assert len(optimizer._plan._recorder._steps) < 13
    hvd.join()
    hvd.shutdown()


def test_steps_without_a_rank_that_has_joined_are_not_kept():
    run_ranks(2, _joins_long_before)


def _planned_once():
    hvd.init()
    model = _net()
    optimizer = _wrap(model, "single")
    _train(model, optimizer, range(50), [hvd.rank()])
    assert not optimizer._plan._seconds
    hvd.shutdown()


def test_a_job_that_has_planned_once_measures_no_more():
    run_ranks(2, _planned_once)


def _starts_anew():
    hvd.init()
    model = _net()
    optimizer = _wrap(model, "single")
    _train(model, optimizer, range(20), [hvd.rank()])
    assert len(_buckets(optimizer)) == 1
    hvd.shutdown()
    hvd.init()
    _train(model, optimizer, range(5), [hvd.rank()])
    assert len(_buckets(optimizer)) == 8
    _train(model, optimizer, range(20), [hvd.rank()])
    assert len(_buckets(optimizer)) == 1
    hvd.shutdown()


def test_a_job_that_starts_anew_plans_anew():
    run_ranks(2, _starts_anew)


def _grows_units():
    hvd.init()
    units.grow(8, _wrap(_net())._plan, hvd.global_process_set)
    hvd.shutdown()
    os.environ["AIACC_UNIT_BYTES"] = "64K"
    hvd.init()
    _wrap(_net())
    hvd.barrier()
    hvd.barrier()
    assert _core.stats()["unit_bytes"] == 1 << 16
    hvd.shutdown()


def test_grown_units_end_with_their_job():
    run_ranks(2, _grows_units)


class _Changing(search.Watch):
    """The first look after the search sees a change."""

    changes = 1

    def changed(self, seconds):
        del seconds
        _Changing.changes -= 1
        return _Changing.changes >= 0


def _changes():
    auto_plan.Watch, auto_plan.WATCHED = _Changing, 4
    hvd.init()
    model = _net()
    optimizer = _wrap(model)
    steps = 0
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        while _Changing.changes == 1:
            _train(model, optimizer, [steps], [hvd.rank()])
            steps += 1
            assert steps <= STEPS + 5
        assert len(_buckets(optimizer)) == 8
        assert optimizer._plan._phase == optimizer._plan._record
        _train(model, optimizer, range(STEPS), [hvd.rank()])
    assert optimizer._plan._phase == optimizer._plan._watch
    if hvd.rank() == 0:
        assert re.search(r"plan='auto': steps take .* s now; planning anew", said.getvalue())
        assert len(re.findall(r"aiacc: plan='auto': .* \(before: ", said.getvalue())) == 2
    hvd.shutdown()


def test_steps_that_have_changed_are_planned_anew():
    run_ranks(2, _changes)


def _in_a_set():
    hvd.init()
    members = hvd.add_process_set([1, 2])
    model = _net()
    optimizer = _wrap(model, "single", process_set=members)
    _train(model, optimizer, range(20 if hvd.rank() else 3), [hvd.rank()])
    assert len(_buckets(optimizer)) == (1 if hvd.rank() else 0)
    hvd.barrier()
    hvd.shutdown()


def test_in_a_process_set_its_members_plan():
    run_ranks(3, _in_a_set)


def _mixed():
    hvd.init()
    model = _net()
    model[0].bias.requires_grad_(False)
    embedding = nn.Embedding(5, 3, sparse=True)
    named = [*model.named_parameters(), ("rows.weight", embedding.weight)]
    sgd = torch.optim.SGD([p for _, p in named], 0.1)
    optimizer = hvd.DistributedOptimizer(sgd, named, plan="single", backward_passes_per_step=2)
    for _ in range(20):
        optimizer.zero_grad()
        for _ in range(2):
            rows = embedding(torch.tensor([hvd.rank(), 3]))
            (model(torch.ones(1, 8).double()).sum() + rows.sum()).backward()
        optimizer.step()
    assert sorted(map(len, _buckets(optimizer))) == [1, 7]
    assert embedding.weight.grad.is_sparse
    hvd.shutdown()


def _compare_costs(*known):
    os.environ["AIACC_CHECK_FINITE"] = "raise"
    hvd.init()
    costs, busy_s = known[hvd.rank()]
    found = least_waiting(costs, busy_s, "costs", hvd.global_process_set)
    hvd.shutdown()
    return found


def test_costs_are_those_of_the_rank_that_waited_least():
    # The others have lower ones of nothing, or of many bytes.
    known = ((0.0, 4e-8), 5.0), ((0.02, 3e-8), 4.0), ((0.1, 1e-8), 4.5)
    assert run_ranks(3, _compare_costs, *known) == [(0.02, 3e-8)] * 3
    same = ((0.01, 4e-8), 5.0), ((0.02, 3e-8), 5.0)
    assert run_ranks(2, _compare_costs, *same) == [(0.02, 4e-8)] * 2
    for unknown in ((None, 0.0), ((0.1, 1e-8), float("inf")), ((float("nan"), 1e-8), 1.0)):
        assert run_ranks(2, _compare_costs, known[0], unknown) == [None] * 2


def _loses_a_rank():
    hvd.init()
    model = _net()
    optimizer = _wrap(model)
    _train(model, optimizer, range(3), [hvd.rank()])
    if hvd.rank() == 1:
        _train(model, optimizer, range(3, 4), [hvd.rank()])  # then the other one is past the third
        os._exit(3)
    with pytest.raises(aiacc.PeerLostError, match="rank 1"):
        _train(model, optimizer, range(3, STEPS), [hvd.rank()])
    return "survived"


def test_a_lost_rank_is_an_error():
    assert run_ranks(2, _loses_a_rank, missing=[1])[0] == "survived"


def test_frozen_and_sparse_parameters_are_in_no_plan():
    run_ranks(2, _mixed)


def _late():
    hvd.init()
    model = _net()
    optimizer = _wrap(model, "single")
    _train(model, optimizer, range(20), [hvd.rank()])
    model[3].weight.requires_grad_(True)
    head = model[3]
    model[3] = nn.Identity()  # in this step nobody uses the last layer
    before = head.weight.detach().clone()
    with pytest.warns(
        UserWarning, match=r"plan: no gradient of '3\.\w+' came in a step; the bucket of 8"
    ):
        _train(model, optimizer, [0], [hvd.rank()])
    torch.testing.assert_close(head.weight.detach(), before)
    _train(model, optimizer, [1], [hvd.rank()])  # said once
    hvd.shutdown()


def test_a_missing_gradient_is_told_once():
    run_ranks(2, _late)


def _refuses():
    hvd.init()
    model = _net()
    for arguments, text in (
        ({"plan": "best"}, "plan='best' .expected 'auto', a planner"),
        ({"groups": 2}, "plan and groups are given"),
        ({"op": hvd.Adasum}, "op=Adasum with groups, a plan"),
        ({"schedule": "decoupled"}, "plan='auto' with schedule='decoupled'"),
    ):
        with pytest.raises(ValueError, match=text):
            _wrap(model, **arguments)
    hvd.shutdown()


def test_what_cannot_be_planned():
    run_ranks(1, _refuses)


def _alone():
    hvd.init()
    model = _net()
    expected = _expected(range(20))
    torch.testing.assert_close(_train(model, _wrap(model), range(20), [0]), expected)
    assert not torch_modules._global_forward_hooks  # nothing records for ever
    hvd.shutdown()


def test_a_single_rank_has_nothing_to_plan():
    run_ranks(1, _alone)
