"""What a job plans from its own steps, from made-up ones."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from aiacc.planning import models
from aiacc.planning.cost import Affine
from aiacc.planning.execution import Sending, arrivals_s
from aiacc.planning.fit import Operation, busy_s, fit_steps, samples_of_step
from aiacc.planning.plan import UNCONSTRAINED, Constraints
from aiacc.planning.problem import Problem
from aiacc.planning.schedule import arrivals, predict
from aiacc.planning.search import GROWTH, RIVALS, TOLERANCE, PlanSearch, Watch, check_wish
from aiacc.planning.trace import Tensor, Trace

MIB = 1 << 20


def _trace(count=40, nbytes=4 * MIB, gap=1e-3):
    tensors = tuple(
        Tensor(f"t{i}", nbytes, "float32", 0.02 + gap * (i + 1), 0.0) for i in range(count)
    )
    return Trace("net", tensors, 0.02, gap * count, "measured")


def _operations(problem, ends):
    """What a job would see of a plan's buckets."""
    starts = [0, *ends[:-1]]
    return [
        Operation(
            float(problem.ready[end - 1]),
            done,
            int(problem.prefix[end] - problem.prefix[start]),
        )
        for start, end, done in zip(starts, ends, arrivals(problem, ends), strict=True)
    ]


def test_steps_tell_what_their_operations_cost():
    rng = random.Random(1)
    for _ in range(50):
        sizes = [rng.randint(1, 8 * MIB) for _ in range(30)]
        ready = sorted(rng.uniform(0, 0.3) for _ in sizes)
        tensors = tuple(
            Tensor(f"t{i}", size, "float32", at, 0.0)
            for i, (size, at) in enumerate(zip(sizes, ready, strict=True))
        )
        a, b = 10 ** rng.uniform(-5, -3), 10 ** rng.uniform(-10, -8)
        problem = Problem(Trace("net", tensors, 0.0, 0.3, "measured"), Affine(a, b))
        found = fit_steps([_operations(problem, list(range(1, 31)))])
        assert found == pytest.approx((a, b), rel=1e-6)


@pytest.mark.parametrize("name", ["resnet50", "bert_base", "densenet201"])
@pytest.mark.parametrize("at_once", [False, True])
def test_lanes_that_share_a_wire_do_not_hide_what_bytes_cost(name, at_once):
    trace = models.trace_of(name)
    if at_once:
        tensors = tuple(dataclasses.replace(one, ready_s=0.0) for one in trace.tensors)
        trace = dataclasses.replace(trace, tensors=tensors)
    b = 4e-8  # 300 Mbit/s between 4 hosts
    finished = arrivals_s(trace, None, Affine(5e-4, b), Sending(lanes=4))
    operations = [
        Operation(one.ready_s, end_s, one.bytes)
        for one, end_s in zip(trace.tensors, finished, strict=True)
    ]
    assert fit_steps([operations])[1] == pytest.approx(b, rel=0.06)


def test_operations_that_end_together_are_one_sample():
    together = [Operation(0.0, 1.0, 10), Operation(0.5, 1.0, 20), Operation(0.25, 3.0, 40)]
    assert samples_of_step(together) == [(30.0, 1.0), (40.0, 2.0)]
    assert samples_of_step([]) == []
    assert busy_s([together, together, together[:1]]) == 3.0
    assert busy_s([[], together]) == 3.0
    assert busy_s([[]]) == 0.0


def test_costs_keep_the_time_of_the_steps():
    # Nothing that a + b M fits, but what they took in total is kept.
    steps = [[Operation(0.0, 0.1 * i**3, 100 * i) for i in range(1, 9)]]
    a, b = fit_steps(steps)
    samples = samples_of_step(steps[0])
    assert sum(a + b * nbytes for nbytes, _ in samples) == pytest.approx(
        sum(seconds for _, seconds in samples)
    )


def test_a_stall_in_one_of_the_steps_says_nothing_about_the_network():
    a, b = 1e-3, 8e-11

    def step(stall_s):
        now, operations = 0.0, []
        for number, nbytes in enumerate([10_000, 4_000_000, 300_000, 90_000] * 15):
            begins = now
            now += a + b * nbytes + (stall_s if number == 20 else 0.0)
            operations.append(Operation(begins, now, nbytes))
        return operations

    assert fit_steps([step(0.0), step(300.0), step(0.0), step(0.0)]) == pytest.approx((a, b), 0.05)


def test_operations_of_one_size_keep_the_proportion_of_what_was_assumed():
    steps = [[Operation(0.0, 1.0, 100), Operation(0.0, 2.0, 100)]]
    assert fit_steps(steps, (0.1, 0.004)) == pytest.approx((0.2, 0.008))
    assert fit_steps(steps) == (1.0, 0.0)  # nothing was assumed
    with pytest.raises(ValueError, match="2 steps without an operation"):
        fit_steps([[], []], (0.1, 0.004))


def test_where_bytes_cost_nothing_all_is_startup():
    steps = [[Operation(0.0, 3.0, 10), Operation(0.0, 5.0, 1000)]]
    assert fit_steps(steps) == (2.5, 0.0)


def _run(search, seconds_of, costs=(1e-3, 1e-9)):
    """Feed the search until it is done; the planners of all visits."""
    visits = []
    while not search.done:
        assert len(visits) < 20
        plan = search.current.plan
        visits.append(None if plan is None else plan.planner)
        search.add(seconds_of(plan), costs)
    return visits


def _predicted(trace, cost):
    return lambda plan: (
        trace.compute_s + 1.0 if plan is None else predict(Problem(trace, cost), plan)
    )


def test_a_plan_that_keeps_its_promise_stays():
    trace, cost = _trace(), Affine(1e-3, 1e-9)
    seconds_of = _predicted(trace, cost)
    search = PlanSearch("auto", trace, UNCONSTRAINED, (1e-3, 1e-9), seconds_of(None))
    visits = _run(search, seconds_of)
    outward = ["optimal", "ddp", "threshold(25)"]
    assert visits == [*outward, *outward[::-1], None]
    assert search.current.plan.planner == "optimal"
    assert "optimal with" in search.describe()
    assert "no plan 1.06 s a step" in search.describe()


def test_buckets_that_were_tried_are_not_tried_again():
    # Two tensors that may not share a bucket leave no choice.
    alone = Constraints(keys=["one GPU", "another"])
    search = PlanSearch("auto", _trace(2, gap=1e-4), alone, (1e-2, 1e-9), 1.0)
    assert _run(search, lambda plan: 0.9, costs=(1e-2, 1e-9)) == ["optimal", "optimal", None]


def test_what_no_trace_has_counts_in_every_step():
    trace, cost, outside_s = _trace(), Affine(1e-3, 1e-9), 0.5
    seconds_of = _predicted(trace, cost)
    search = PlanSearch(
        "auto",
        trace,
        UNCONSTRAINED,
        (1e-3, 1e-9),
        seconds_of(None) + outside_s,
        outside_s=outside_s,
    )
    visits = _run(search, lambda plan: seconds_of(plan) + outside_s, costs=(1e-6, 1e-12))
    assert visits.count("optimal") == 2  # there and back: no other costs were tried
    assert search.current.off < 1e-9


def test_wrong_costs_are_found_by_the_first_plan_and_mended():
    trace, cost = _trace(), Affine(5e-3, 4e-9)
    seconds_of = _predicted(trace, cost)
    search = PlanSearch("auto", trace, UNCONSTRAINED, (1e-6, 1e-9), seconds_of(None))
    visits = _run(search, seconds_of, (5e-3, 4e-9))
    assert visits[:2] == ["optimal", "optimal"]
    best = predict(Problem(trace, cost), search.current.plan)
    assert search.current.plan.predicted_s == pytest.approx(best)
    assert search.current.mean_s == min(one.mean_s for one in search.contestants)


def test_costs_that_never_fit_do_not_go_on_for_ever():
    trace = _trace()
    rng = random.Random(3)
    search = PlanSearch("auto", trace, UNCONSTRAINED, (1e-3, 1e-9), 9.0)
    number = 0
    while not search.done:
        number += 1
        search.add(rng.uniform(1, 5), (10 ** rng.uniform(-6, -2), 10 ** rng.uniform(-10, -8)))
    assert number <= 11


def test_larger_units_are_tried_last_with_the_best_so_far():
    trace, cost = _trace(), Affine(1e-3, 1e-9)
    seconds_of = _predicted(trace, cost)
    search = PlanSearch("auto", trace, UNCONSTRAINED, (1e-3, 1e-9), seconds_of(None), grows=True)
    visits = []
    while not search.done:
        visits.append(search.current.growth)
        share = 0.8 if search.current.growth > 1 else 1.0
        search.add(share * seconds_of(search.current.plan), (1e-3, 1e-9))
    assert visits == [1, 1, 1, GROWTH, GROWTH, 1, 1, 1, 1]
    assert search.current.plan.planner == "optimal"
    assert search.current.growth == GROWTH
    assert "optimal with 3 buckets and units 8 times as large 0." in search.describe()


def _growths(best, unit_bytes):
    """What a search tries of units, if the plans of this planner are the fastest."""
    search = PlanSearch(
        *("auto", _trace(), UNCONSTRAINED, (1e-3, 1e-9), 1.0), grows=True, unit_bytes=unit_bytes
    )
    _run(search, lambda plan: 0.5 if (plan and plan.planner) == best else 1.5)
    return {one.growth for one in search.contestants}


def test_larger_units_are_tried_only_where_they_hold_more_of_a_bucket():
    rival, largest = "threshold(25)", 28 * MIB
    assert _growths(rival, 0) == _growths(rival, largest - 1) == {1, GROWTH}
    assert _growths(rival, largest) == {1}
    # Without a plan, units decide what travels together.
    assert _growths(None, 1 << 40) == {1, GROWTH}


def test_larger_units_are_given_up_where_they_are_slower():
    search = PlanSearch("auto", _trace(), UNCONSTRAINED, (1e-3, 1e-9), 1.0, grows=True)
    while not search.done:
        search.add(0.9 if search.current.growth == 1 else 0.95, (1e-3, 1e-9))
    assert search.current.growth == 1


def test_steps_without_a_plan_may_be_the_best():
    search = PlanSearch("auto", _trace(), UNCONSTRAINED, (1e-3, 1e-9), 1.0)
    _run(search, lambda plan: 1.0 if plan is None else 1.3)
    assert search.current.plan is None
    assert search.describe().startswith("plan='auto': no plan 1 s a step (before: optimal with")


@pytest.mark.parametrize("best", RIVALS)
def test_a_rival_may_be_the_best(best):
    search = PlanSearch("auto", _trace(), UNCONSTRAINED, (1e-3, 1e-9), 1.0)
    _run(search, lambda plan: 0.9 if plan and plan.planner == best else 1.0)
    assert search.current.plan.planner == best


def test_a_drift_hits_all_alike():
    trace, cost = _trace(), Affine(1e-3, 1e-9)
    steps = itertools.count()
    seconds_of = _predicted(trace, cost)
    search = PlanSearch("auto", trace, UNCONSTRAINED, (1e-3, 1e-9), seconds_of(None))
    _run(search, lambda plan: seconds_of(plan) * (1 + 0.01 * next(steps)))
    assert search.current.plan.planner == "optimal"


def test_a_planner_by_name_plans_once():
    search = PlanSearch("optimal_k", _trace(), UNCONSTRAINED, (1e-3, 1e-9), 1.0)
    assert search.done
    assert search.current.plan.planner == "optimal_k"
    assert "plan='optimal_k': optimal_k with" in search.describe()


def test_one_bucket_is_said_in_the_singular():
    search = PlanSearch("single", _trace(), UNCONSTRAINED, (1e-3, 1e-9), 1.0)
    assert "single with 1 bucket predicted" in search.describe()


@pytest.mark.parametrize("wish", ["auto", "optimal", "threshold(25)", "lanes(4)"])
def test_wishes(wish):
    assert check_wish(wish) == wish


@pytest.mark.parametrize("wish", ["best", "", "threshold"])
def test_wishes_that_nobody_grants(wish):
    with pytest.raises(ValueError, match="expected 'auto', a planner such as 'optimal'"):
        check_wish(wish)


def test_a_wish_that_is_a_whole_file_is_not_repeated():
    with pytest.raises(ValueError, match="expected 'auto'") as raised:
        check_wish('{"planner": "optimal"}' * 1000)
    assert len(str(raised.value)) < 200


def test_the_decoupled_schedule_is_asked_for_by_another_name():
    with pytest.raises(ValueError, match="schedule='decoupled' and model=; its plan is a file of"):
        check_wish("decoupled")


@pytest.mark.parametrize("wish", ["lanes(0)", "threshold(0)"])
def test_numbers_that_a_planner_refuses(wish):
    with pytest.raises(ValueError, match="expected"):
        check_wish(wish)


def test_a_watch_wants_to_see_a_change_twice():
    watch = Watch()
    slow = 1 + 2 * TOLERANCE
    assert [watch.changed(s) for s in (1.0, 1.05, slow, 1.0, slow, slow)] == [False] * 5 + [True]
