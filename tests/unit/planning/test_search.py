"""What a job plans from its own steps, from made-up ones."""

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
from tests.unit.planning.instances import made_trace

MIB = 1 << 20
#: Costs of most networks here: seconds of a startup, and of a byte.
KNOWN = (1e-3, 1e-9)


def _trace(count=40, gap=1e-3):
    rows = [(4 * MIB, 0.02 + gap * (i + 1)) for i in range(count)]
    return made_trace(rows, 0.02, gap * count, "measured")


def _operations(trace, ends_s):
    """What a job would see of tensors that each travel alone and end then."""
    return [
        Operation(one.ready_s, end_s, one.bytes)
        for one, end_s in zip(trace.tensors, ends_s, strict=True)
    ]


def test_steps_tell_what_their_operations_cost():
    rng = random.Random(1)
    for _ in range(50):
        ready = sorted(rng.uniform(0, 0.3) for _ in range(30))
        trace = made_trace([(rng.randint(1, 8 * MIB), at) for at in ready], 0.0, 0.3, "measured")
        a, b = 10 ** rng.uniform(-5, -3), 10 ** rng.uniform(-10, -8)
        ends_s = arrivals(Problem(trace, Affine(a, b)), list(range(1, 31)))
        assert fit_steps([_operations(trace, ends_s)]) == pytest.approx((a, b), rel=1e-6)


@pytest.mark.parametrize("name", ["resnet50", "bert_base", "densenet201"])
@pytest.mark.parametrize("at_once", [False, True])
def test_lanes_that_share_a_wire_do_not_hide_what_bytes_cost(name, at_once):
    trace = models.trace_of(name)
    if at_once:
        tensors = tuple(dataclasses.replace(one, ready_s=0.0) for one in trace.tensors)
        trace = dataclasses.replace(trace, tensors=tensors)
    b = 4e-8  # 300 Mbit/s between 4 hosts
    finished = arrivals_s(trace, None, Affine(5e-4, b), Sending(lanes=4))
    assert fit_steps([_operations(trace, finished)])[1] == pytest.approx(b, rel=0.06)


def test_operations_that_end_together_or_are_of_one_size():
    together = [Operation(0.0, 1.0, 10), Operation(0.5, 1.0, 20), Operation(0.25, 3.0, 40)]
    assert samples_of_step(together) == [(30.0, 1.0), (40.0, 2.0)]
    assert samples_of_step([]) == []
    assert busy_s([together, together, together[:1]]) == 3.0
    assert busy_s([[], together]) == 3.0
    assert busy_s([[]]) == 0.0
    steps = [[Operation(0.0, 1.0, 100), Operation(0.0, 2.0, 100)]]
    assert fit_steps(steps, (0.1, 0.004)) == pytest.approx((0.2, 0.008))
    assert fit_steps(steps) == (1.0, 0.0)  # nothing was assumed
    with pytest.raises(ValueError, match="2 steps without an operation"):
        fit_steps([[], []], (0.1, 0.004))


def test_costs_keep_the_time_of_the_steps_and_are_startup_where_bytes_cost_nothing():
    # Nothing that a + b M fits, but what they took in total is kept.
    steps = [[Operation(0.0, 0.1 * i**3, 100 * i) for i in range(1, 9)]]
    a, b = fit_steps(steps)
    samples = samples_of_step(steps[0])
    assert sum(a + b * nbytes for nbytes, _ in samples) == pytest.approx(
        sum(seconds for _, seconds in samples)
    )
    steps = [[Operation(0.0, 3.0, 10), Operation(0.0, 5.0, 1000)]]
    assert fit_steps(steps) == (2.5, 0.0)


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


def _search(seconds_of, costs=KNOWN, assumed=KNOWN, *, constraints=UNCONSTRAINED, **options):
    """A search that has ended, and what it tried: planner, or None, and how large units were.

    A step takes ``seconds_of(plan, growth)``. It begins with ``assumed``, and steps tell ``costs``.
    """
    trace = _trace(**{name: options.pop(name) for name in ("count", "gap") if name in options})
    outside_s = options.get("outside_s", 0.0)
    first_s = options.pop("first_s", trace.compute_s + 1.0 + outside_s)
    search = PlanSearch("auto", trace, constraints, assumed, first_s, **options)
    visits = []
    while not search.done:
        assert len(visits) < 20
        plan, growth = search.current.plan, search.current.growth
        visits.append((None if plan is None else plan.planner, growth))
        search.add(seconds_of(plan, growth), costs() if callable(costs) else costs)
    return search, visits


def _predicted(costs=KNOWN, outside_s=0.0):
    """Steps as they are predicted; 1 s of exchanges without a plan."""
    problem = Problem(_trace(), Affine(*costs))
    compute_s = problem.trace.compute_s
    return lambda plan, growth: (
        outside_s + (compute_s + 1.0 if plan is None else predict(problem, plan))
    )


def test_a_plan_that_keeps_its_promise_stays_also_in_a_drift_and_with_what_no_trace_has():
    search, visits = _search(_predicted())
    outward = ["optimal", "ddp", "threshold(25)"]
    assert visits == [(name, 1) for name in [*outward, *outward[::-1], None]]
    assert search.current.plan.planner == "optimal"
    assert "optimal with" in search.describe()
    assert "no plan 1.06 s a step" in search.describe()
    steps, predicted = itertools.count(), _predicted()
    search, _ = _search(lambda *one: predicted(*one) * (1 + 0.01 * next(steps)))
    assert search.current.plan.planner == "optimal"
    search, visits = _search(_predicted(outside_s=0.5), (1e-6, 1e-12), outside_s=0.5)
    assert visits.count(("optimal", 1)) == 2  # there and back: no other costs were tried
    assert search.current.off < 1e-9


def test_buckets_that_were_tried_are_not_tried_again():
    # Two tensors that may not share a bucket leave no choice.
    alone = Constraints(keys=["one GPU", "another"])
    slow = (1e-2, 1e-9)
    _, visits = _search(lambda *_: 0.9, slow, slow, constraints=alone, count=2, gap=1e-4)
    assert visits == [("optimal", 1), ("optimal", 1), (None, 1)]


def test_wrong_costs_are_found_by_the_first_plan_and_mended():
    right = (5e-3, 4e-9)
    search, visits = _search(_predicted(right), right, (1e-6, 1e-9))
    assert visits[:2] == [("optimal", 1)] * 2
    best = predict(Problem(_trace(), Affine(*right)), search.current.plan)
    assert search.current.plan.predicted_s == pytest.approx(best)
    assert search.current.mean_s == min(one.mean_s for one in search.contestants)


def test_costs_that_never_fit_do_not_go_on_for_ever():
    rng = random.Random(3)
    _, visits = _search(
        lambda *_: rng.uniform(1, 5),
        lambda: (10 ** rng.uniform(-6, -2), 10 ** rng.uniform(-10, -8)),
        first_s=9.0,
    )
    assert len(visits) <= 11


def test_larger_units_are_tried_last_with_the_best_so_far_and_given_up_where_slower():
    predicted = _predicted()
    search, visits = _search(
        lambda plan, growth: predicted(plan, growth) * (0.8 if growth > 1 else 1.0), grows=True
    )
    assert [growth for _, growth in visits] == [1, 1, 1, GROWTH, GROWTH, 1, 1, 1, 1]
    assert search.current.plan.planner == "optimal"
    assert search.current.growth == GROWTH
    assert "optimal with 3 buckets and units 8 times as large 0." in search.describe()
    search, _ = _search(lambda _, growth: 0.9 if growth == 1 else 0.95, first_s=1.0, grows=True)
    assert search.current.growth == 1


@pytest.mark.parametrize(
    ("best", "unit_bytes", "tried"),
    [
        (RIVALS[-1], 0, {1, GROWTH}),
        (RIVALS[-1], 28 * MIB - 1, {1, GROWTH}),
        (RIVALS[-1], 28 * MIB, {1}),  # which hold its largest bucket
        (None, 1 << 40, {1, GROWTH}),  # without a plan, units decide what travels together
    ],
)
def test_larger_units_are_tried_only_where_they_hold_more_of_a_bucket(best, unit_bytes, tried):
    search, _ = _search(
        lambda plan, _: 0.5 if (plan and plan.planner) == best else 1.5,
        first_s=1.0,
        grows=True,
        unit_bytes=unit_bytes,
    )
    assert {one.growth for one in search.contestants} == tried


@pytest.mark.parametrize("best", [None, *RIVALS])
def test_steps_without_a_plan_or_of_a_rival_may_be_the_best(best):
    def seconds_of(plan, _):
        return 1.0 if (plan and plan.planner) == best else 1.3

    search, _ = _search(seconds_of, first_s=1.0)
    assert (search.current.plan and search.current.plan.planner) == best
    if best is None:
        assert search.describe().startswith("plan='auto': no plan 1 s a step (before: optimal with")


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("optimal_k", "plan='optimal_k': optimal_k with"),
        ("single", "single with 1 bucket predicted"),  # in the singular
    ],
)
def test_a_planner_by_name_plans_once(wish, said):
    search = PlanSearch(wish, _trace(), UNCONSTRAINED, KNOWN, 1.0)
    assert search.done
    assert search.current.plan.planner == wish
    assert said in search.describe()


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        *((wish, "expected 'auto', a planner such as 'optimal'") for wish in ("best", "")),
        ("threshold", "expected 'auto', a planner such as 'optimal'"),
        ('{"planner": "optimal"}' * 1000, "expected 'auto'"),  # a whole file, not repeated
        ("decoupled", "schedule='decoupled' and model=; its plan is a file of"),
        ("lanes(0)", "expected"),
        ("threshold(0)", "expected"),
    ],
    ids=lambda text: text[:20],
)
def test_wishes_that_nobody_grants(wish, said):
    assert check_wish("threshold(25)") == "threshold(25)"
    with pytest.raises(ValueError, match=said) as raised:
        check_wish(wish)
    assert len(str(raised.value)) < 200


def test_a_watch_wants_to_see_a_change_twice():
    watch = Watch()
    slow = 1 + 2 * TOLERANCE
    assert [watch.changed(s) for s in (1.0, 1.05, slow, 1.0, slow, slow)] == [False] * 5 + [True]
