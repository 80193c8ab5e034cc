"""Optimizers that follow a plan, or plan from their own steps, also where something fails."""

import contextlib
import gc
import io
import os
import re
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

import aiacc
import aiacc.torch as hvd
from aiacc import _core
from aiacc.planning import search
from aiacc.planning.plan import Plan
from aiacc.torch import auto_plan
from aiacc.torch.reducer.consensus import least_waiting
from aiacc.torch.units import units
from tests.support.jobs import join_as, on_ranks
from tests.support.learning.training import (
    DUPLICATES,
    Alone,
    Recipe,
    Together,
    check_learned,
    compare,
    distributed,
    squares,
    together,
    train,
)

#: Steps after which every search is over.
STEPS = 13 + 6 * 13


def _net():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8).double() for _ in range(4)))


NET = Recipe(_net, partial(torch.optim.SGD, lr=0.1), squares(4, 8))


def start(plan="auto", make=_net, **options):
    """A training of this rank that plans for itself."""
    return together(NET._replace(make_model=make), plan=plan, **options)


def _check_same(value):
    assert len(set(map(str, hvd.allgather_object(value)))) == 1


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("plan", ["auto", "optimal"])
@on_ranks(2)
def test_training_is_the_same_whatever_is_tried(plan, view):
    steps = partial(train, batches=range(STEPS))
    training = compare(steps, NET, plan=plan, gradient_as_bucket_view=view)
    assert training.optimizer.plan_phase == ("watch" if plan == "auto" else "nothing")
    _check_same(training.optimizer.buckets)
    empty = start(plan, lambda: nn.ParameterList([nn.Parameter(torch.zeros(0))]))
    for _ in range(14):
        empty.model[0].sum().backward()
        empty.step()
    assert empty.optimizer.plan_phase != "record"


@on_ranks(2)
def test_ranks_that_join_early_count_anew_and_steps_without_them_are_not_kept():
    training = start()
    model, optimizer = training.model, training.optimizer
    # The second rank has less data in each epoch: ranks end different numbers of steps.
    for epoch in range(4):
        own = 30 if hvd.rank() == 0 else 30 - 5 * (epoch + 1)
        train(training, range(own))
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), 0)
    train(training, range(STEPS))
    _check_same(optimizer.buckets)
    training = start()
    optimizer = training.optimizer
    if hvd.rank() == 0:
        train(training, range(50))
        assert len(optimizer._aiacc_plan._recorder._steps) < 13
    hvd.join()


@on_ranks(2)
def test_a_job_that_starts_anew_plans_anew():
    training = start("single")
    optimizer = training.optimizer
    train(training, range(50))
    assert len(optimizer.buckets) == 1
    assert not optimizer._aiacc_plan._seconds  # it measures no more
    optimizer._aiacc_plan._watched *= 4  # as after two changes
    hvd.shutdown()
    hvd.init()
    assert optimizer._aiacc_plan._watched == auto_plan.WATCHED, (
        "as a new worker, who has not looked"
    )
    train(training, range(5))
    assert len(optimizer.buckets) == 8
    train(training, range(20))
    assert len(optimizer.buckets) == 1


class _Changing(search.Watch):
    """The first look after the search sees a change."""

    changes = 1

    def changed(self, seconds):
        _Changing.changes -= 1
        return _Changing.changes >= 0


@on_ranks(2)
def test_steps_that_have_changed_are_planned_anew():
    auto_plan.Watch, auto_plan.WATCHED = _Changing, 4
    training = start()
    optimizer = training.optimizer
    steps = 0
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        while _Changing.changes == 1:
            train(training, [steps])
            steps += 1
            assert steps <= STEPS + 5
        assert len(optimizer.buckets) == 8
        assert optimizer.plan_phase == "record"
        train(training, range(STEPS))
    assert optimizer.plan_phase == "watch"
    if hvd.rank() > 0:
        assert said.getvalue() == ""
        return
    assert re.search(r"plan='auto': steps take .* s now; planning anew", said.getvalue())
    assert len(re.findall(r"aiacc: plan='auto': .* \(before: ", said.getvalue())) == 2


@on_ranks(3)
def test_in_a_process_set_its_members_plan():
    members = hvd.add_process_set([1, 2])
    training = start("single", process_set=members)
    train(training, range(20 if hvd.rank() else 3))
    assert len(training.optimizer.buckets) == (1 if hvd.rank() else 0)
    hvd.barrier()


@on_ranks(2)
def test_frozen_and_sparse_parameters_are_in_no_plan():
    def make():
        model = nn.ModuleDict({"rows": nn.Embedding(5, 3, sparse=True), "net": _net()})
        model["net"][0].bias.requires_grad_(False)
        return model

    training = start("single", make, backward_passes_per_step=2)
    training.loss = lambda model, rank, batch: (
        model["net"](torch.ones(1, 8).double()).sum() + model["rows"](torch.tensor([rank, 3])).sum()
    )
    for _ in range(20):
        training.zero_grad()
        training.backward(0)
        training.backward(0)
        training.step()
    assert sorted(map(len, training.optimizer.buckets)) == [1, 7]
    assert training.model["rows"].weight.grad.is_sparse
    training = start("single", lambda: _net().requires_grad_(False))
    training.model.requires_grad_(True)  # from the first step on
    train(training, range(20))
    assert [len(bucket) for bucket in training.optimizer.buckets] == [8]


@on_ranks(3, env={"AIACC_CHECK_FINITE": "raise"})
def test_costs_are_those_of_the_rank_that_waited_least():
    pair = hvd.add_process_set([0, 1])
    first, nan, infinite = ((0.0, 4e-8), 5.0), float("nan"), float("inf")
    for known, expected in (
        # The others have lower ones of nothing, or of many bytes.
        ([first, ((0.02, 3e-8), 4.0), ((0.1, 1e-8), 4.5)], (0.02, 3e-8)),
        ([((0.01, 4e-8), 5.0), ((0.02, 3e-8), 5.0)], (0.02, 4e-8)),
        ([first, (None, 0.0)], None),
        ([first, ((0.1, 1e-8), infinite)], None),
        ([first, ((nan, 1e-8), 1.0)], None),
    ):
        process_set = hvd.global_process_set if len(known) == 3 else pair
        if process_set.included():
            costs, busy_s = known[hvd.rank()]
            assert least_waiting(costs, busy_s, "costs", process_set) == expected
    hvd.barrier()


@on_ranks(2, missing=[1])
def test_a_lost_rank_is_an_error():
    training = train(start(), range(3))
    if hvd.rank() == 1:
        train(training, range(3, 4))  # then the other one is past the third
        os._exit(3)
    with pytest.raises(aiacc.PeerLostError, match="rank 1"):
        train(training, range(3, STEPS))


@on_ranks(2)
def test_a_missing_gradient_is_told_once():
    training = start("single")
    model = training.model
    train(training, range(20))
    model[3].weight.requires_grad_(True)
    head = model[3]
    model[3] = nn.Identity()  # in this step nobody uses the last layer
    before = head.weight.detach().clone()
    with pytest.warns(
        UserWarning, match=r"plan: no gradient of '3\.\w+' came in a step; the bucket of 8"
    ):
        train(training, [0])
    torch.testing.assert_close(head.weight.detach(), before)
    train(training, [1])  # said once


@on_ranks(1)
def test_a_single_rank_has_nothing_to_plan():
    compare(partial(train, batches=range(20)), NET, plan="auto")
    assert not torch_modules._global_forward_hooks  # nothing records for ever


# --- jobs that go another way than from the first step to the last


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
        reducer = training.optimizer._aiacc_reducer
        reducer.options = reducer.options._replace(storage=storage)
        with pytest.warns(UserWarning, match=r"no memory for the buckets .*as of a GPU"):
            return train(training, range(20))

    optimizer = compare(trained, NET, plan=plan, gradient_as_bucket_view=True).optimizer
    assert [len(bucket) for bucket in optimizer.buckets] == [8]
    assert optimizer._aiacc_reducer.buckets[0].flat is None


@pytest.mark.parametrize("failing", [0, 1])
@on_ranks(2)
def test_a_rank_whose_times_cannot_be_read_ends_its_steps(failing):
    training = start("single")
    optimizer = training.optimizer
    if hvd.rank() == failing:
        optimizer._aiacc_plan._recorder._between = None
        with pytest.warns(UserWarning, match="the recorded times cannot be read, TypeError"):
            train(training, range(20))
    else:
        train(training, range(20))
    assert [len(bucket) for bucket in optimizer.buckets] == ([1] * 8 if failing == 0 else [8])


@on_ranks(2)
def test_units_stay_as_one_optimizer_has_chosen_them_and_end_with_it_or_the_job():
    unit = _core.stats()["unit_bytes"]
    first = train(start(), range(STEPS))
    units.grow(
        8, first.optimizer._aiacc_plan, hvd.global_process_set
    )  # as its search may have chosen
    second = train(start(), range(STEPS))
    assert _core.stats()["unit_bytes"] == 8 * unit
    del first, second
    third = start().optimizer
    hvd.barrier()
    hvd.barrier()
    assert _core.stats()["unit_bytes"] == unit
    assert not third._aiacc_plan._seconds
    units.grow(8, third._aiacc_plan, hvd.global_process_set)
    hvd.shutdown()
    os.environ["AIACC_UNIT_BYTES"] = "64K"
    hvd.init()
    start()
    hvd.barrier()
    hvd.barrier()
    assert _core.stats()["unit_bytes"] == 1 << 16


@on_ranks(2)
def test_a_copy_plans_anew_once_it_steps():
    hooks = nn.modules.module._global_forward_hooks
    training = train(start("single"), range(20))
    for how in ("deepcopy", "pickle"):
        other = Together(*DUPLICATES[how]((training.model, training.optimizer)), training.loss)
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


# --- ranks that call `step` unequally often, and reduce equally often, as after errors on one

#: Steps that the first rank ends in another way: some step, and those that end a phase.
_ODD = (3, 5, 12)


def _forward(model):
    return model(torch.ones(2, 8).double()).sum()


def _retries(model, optimizer, odd):
    """Nothing was reduced when the closure failed."""

    def fails():
        raise RuntimeError("no memory, say")

    def closure():
        optimizer.zero_grad()
        loss = _forward(model)
        loss.backward()
        return loss

    if odd:
        with pytest.raises(RuntimeError, match="no memory, say"):
            optimizer.step(fails)
    optimizer.step(closure)


def _refused(model, optimizer, odd, step=None, scale=lambda loss: loss):
    """All was reduced, but not to the liking of this rank, which leaves the batch out."""
    optimizer.zero_grad()
    scale(_forward(model)).backward()
    if odd:
        model[2].weight.grad.mul_(1.0)  # it has left
        with pytest.raises(ValueError, match="was written to between backward"):
            (step or optimizer.synchronize)()
    elif step is None:
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    else:
        step()


def _refused_for_scaler(model, optimizer, odd):
    """The same where a scaler synchronises."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    _refused(model, optimizer, odd, lambda: scaler.step(optimizer), scaler.scale)


def _left_out(model, optimizer, odd):
    """What comes between the two calls fails here."""
    optimizer.zero_grad()
    _forward(model).backward()
    optimizer.synchronize()
    if not odd:
        with optimizer.skip_synchronize():
            optimizer.step()


_WAYS = [
    _retries,
    _refused,
    _refused_for_scaler,
    _left_out,
    lambda model, optimizer, odd: _refused(model, optimizer, odd, optimizer.step),
]


@pytest.mark.parametrize("arguments", [{"plan": "auto"}, {"compression": "auto"}, {}])
@on_ranks(2, starts=False)
def test_what_searches_or_is_profiled_counts_reductions(arguments, tmp_path):
    """Of a profile further optimizers have files of their own: net.2.json and so on."""
    os.environ["AIACC_PROFILE"] = "" if arguments else str(tmp_path / "net.json")
    join_as("ab" if arguments else "aa")
    for step in _WAYS:
        model = _net()
        sgd = torch.optim.SGD(model.parameters(), 0.001)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), **arguments)
        for number in range(STEPS if "plan" in arguments else 30):
            step(model, optimizer, number in _ODD and hvd.rank() == 0)
        _check_same(optimizer.buckets)
        if "plan" in arguments:
            assert optimizer.plan_phase == "watch"
    hvd.barrier()
    files = ["net.2.json", "net.3.json", "net.4.json", "net.5.json", "net.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ([] if arguments else files)


# --- a plan that is given

PLAN = Plan(
    "mine",
    (("3.bias", "3.weight", "2.bias", "2.weight", "1.bias"), ("1.weight", "0.bias", "0.weight")),
)
FOUR_STEPS = partial(train, batches=range(4))


@on_ranks(3)
def test_ranks_with_different_plans_are_told():
    # One of the ranks has another plan than the others, or none.
    other = Plan("other", (("3.bias",), *PLAN.buckets[1:]))
    first = f"plan {PLAN.digest[:12]} of 2 buckets"
    for odd, text in (
        (other, f"plan {other.digest[:12]} of 2 buckets"),
        (None, "no plan"),
        ("auto", "plan='auto'"),
    ):
        who = (
            f"this one {first}, another",
            f"rank 0 {first}, this one {text}",
            "rank 0 and this one",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = together(NET, plan=odd if hvd.rank() == 1 else PLAN)
        told = f"given different plans, groups or buckets: {who[hvd.rank()]}.*"
        for _ in range(2):
            training.refused(FOUR_STEPS, f"{told}; pass the same plan, loaded")
    training = together(NET, plan="auto", gradient_as_bucket_view=hvd.rank() == 1)
    asked = "plan='auto'" + " and gradient_as_bucket_view" * (hvd.rank() == 1)
    training.refused(FOUR_STEPS, f"this one {asked}( .expected|, another)")

    # Groups of the same shapes, which operations cannot tell apart.
    model = _net()
    ends = (model[:2], model[1::-1])[hvd.rank() == 1]
    groups = [[one.weight, other.bias] for one, other in zip(model[:2], ends, strict=True)]
    training = Together(
        model, distributed(model, NET.make_optimizer(model.parameters()), groups=groups), NET.loss
    )
    training.refused(
        FOUR_STEPS, "given different plans, groups or buckets: .*2 groups of names with"
    )


@pytest.mark.parametrize("joins", [False, True])
@on_ranks(3)
def test_ranks_that_differ_in_plan_and_compression_are_told_both(joins):
    """Also while a rank has joined, to which nothing can be sent."""
    if hvd.rank() == 2 and joins:
        hvd.join()
        return
    plan, compression = ((PLAN, "int8"), (None, "none"), (PLAN, "int8"))[hvd.rank()]
    training = together(NET, plan=plan, compression=compression)
    asked = f"plan {PLAN.digest[:12]} of 2 buckets and Policy(int8)", "no plan and no codec"
    mine = f"this one {asked[hvd.rank() == 1]}"
    if not joins and hvd.rank() > 0:
        mine = f"rank 0 {asked[0]}, {mine}" if hvd.rank() == 1 else f"rank 0 and {mine}, another"
    text = f"given different plans, groups or buckets and compression: {mine}"
    training.refused(FOUR_STEPS, re.escape(text))
    if joins:
        hvd.join()


@on_ranks(2)
def test_what_a_plan_leaves_out_goes_by_itself():
    half = Plan("half", PLAN.buckets[:1])
    with pytest.warns(UserWarning, match="plan leaves out 3 of 8 parameters, '0.weight' for one"):
        compare(FOUR_STEPS, NET, plan=half)
    model = _net()
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is frozen has no gradient to plan
        distributed(model, NET.make_optimizer(model.parameters()), plan=half)
