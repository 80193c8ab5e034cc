"""Tensors of several dtypes, or with several keys, that take turns: no bucket has two of these."""

import dataclasses
import random

import pytest

from aiacc.planning import graphs, models, planners
from aiacc.planning.cost import Affine
from aiacc.planning.execution import Sending
from aiacc.planning.explain import explain
from aiacc.planning.network import PUBLISHED
from aiacc.planning.plan import ALL_REDUCE, DECOUPLED, Constraints, Plan
from aiacc.planning.problem import Problem
from aiacc.planning.schedule import all_reduce_step, decoupled_step, in_turn, predict
from aiacc.planning.search import PlanSearch
from aiacc.planning.trace import Tensor, Trace
from tests.unit.planning.instances import every_plan, random_affine, random_table, random_trace

NAMES = [*planners.ALL, "lanes(2)", "threshold(0.01)"]
#: Of small instances: those within 0.1 % of the best plan that there is, and the worst.
_MOSTLY, _AT_WORST = 0.85, 1.1


def in_kinds(trace, kinds):
    tensors = zip(trace.tensors, kinds, strict=True)
    return dataclasses.replace(
        trace, tensors=tuple(dataclasses.replace(one, dtype=kind) for one, kind in tensors)
    )


def random_problems(number, seed, largest=10):
    rng = random.Random(seed)
    for i in range(number):
        trace = random_trace(rng, rng.randint(4, largest))
        trace = in_kinds(trace, [rng.choice("aab") for _ in trace.tensors])
        keys = rng.choice((None, [rng.choice("cd") for _ in trace.tensors]))
        constraints = Constraints(rng.choice((None, 50_000)), keys)
        cost = random_affine(rng) if i % 2 else random_table(rng)
        yield Problem(trace, cost, constraints)


def half_precision(model):
    """A model's trace in float16, but for its small tensors, as those of BatchNorm, in float32."""
    trace = models.trace_of(model)
    small = [one.bytes <= 8192 for one in trace.tensors]
    return in_kinds(
        dataclasses.replace(
            trace,
            tensors=tuple(
                dataclasses.replace(one, bytes=one.bytes if alone else one.bytes // 2)
                for one, alone in zip(trace.tensors, small, strict=True)
            ),
        ),
        ["float32" if alone else "float16" for alone in small],
    )


def planned(name, problem):
    return planners.plan(name, problem.trace, problem.cost, problem.constraints)


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_allowed_and_predictions_equal_the_simulator(name):
    for problem in random_problems(60, seed=1):
        plan, trace = planned(name, problem), problem.trace
        kind_of = dict(zip((one.name for one in trace.tensors), problem.kinds, strict=True))
        sizes = {one.name: one.bytes for one in trace.tensors}
        assert sorted(name for bucket in plan.buckets for name in bucket) == sorted(kind_of)
        for bucket in plan.buckets:
            assert len({kind_of[one] for one in bucket}) == 1
            limit = problem.constraints.max_bytes
            assert limit is None or len(bucket) == 1 or sum(map(sizes.get, bucket)) <= limit
        simulated = graphs.step_s([trace], plan, problem.cost)
        assert plan.predicted_s == pytest.approx(simulated, rel=1e-9)
        assert predict(problem, plan) == plan.predicted_s
        assert plan.bound_s <= plan.predicted_s * (1 + 1e-9)


def test_no_plan_of_neighbours_alone_is_better():
    better = 0
    for problem in random_problems(170, seed=3, largest=9):
        ends = [one for one in every_plan(len(problem)) if _has_neighbours(problem, one)]
        alone = min(all_reduce_step(problem, one) for one in ends)
        found = planned("optimal", problem).predicted_s
        assert found <= alone * (1 + 1e-12)
        assert planned("lanes(1)", problem).predicted_s <= alone * (1 + 1e-12)
        assert planned("optimal_k", problem).predicted_s <= alone * 1.005
        decoupled = min(decoupled_step(problem, one) for one in ends)
        assert planned("decoupled", problem).predicted_s <= decoupled * 1.005
        better += found < alone * 0.999
    assert better > 10


def test_no_other_planner_is_better():
    for problem in random_problems(120, seed=5):
        seconds = {name: planned(name, problem).predicted_s for name in planners.ALL}
        del seconds["decoupled"]  # of another schedule
        assert seconds.pop("lanes(4)") <= seconds["optimal"] == min(seconds.values())
        fewest = seconds.pop("optimal_k")
        del seconds["optimal"]
        assert fewest <= min(seconds.values()) * 1.005 * (1 + 1e-12)


def _has_neighbours(problem, ends):
    starts = [0, *ends[:-1]]
    return all(problem.first[end] <= start for start, end in zip(starts, ends, strict=True))


def _every_bucketing(kinds):
    """All ways to put the tensors of these kinds into buckets of one kind, by number."""
    if not kinds:
        yield []
        return
    last = len(kinds) - 1
    for buckets in _every_bucketing(kinds[:-1]):
        yield [*buckets, [last]]
        for number, bucket in enumerate(buckets):
            if kinds[bucket[0]] == kinds[last]:
                yield [*buckets[:number], [*bucket, last], *buckets[number + 1 :]]


@pytest.mark.parametrize(("name", "schedule"), [("optimal", ALL_REDUCE), ("decoupled", DECOUPLED)])
def test_plans_are_mostly_the_best_that_there_are(name, schedule):
    ratios = []
    for problem in random_problems(400, seed=3, largest=6):
        if not problem.takes_turns or problem.constraints.max_bytes is not None:
            continue
        names = [one.name for one in problem.trace.tensors]
        best = min(
            in_turn(
                problem,
                Plan("", tuple(tuple(names[i] for i in one) for one in buckets), schedule),
            ).predicted_s
            for buckets in _every_bucketing(problem.kinds)
        )
        ratios.append(planned(name, problem).predicted_s / best)
    assert len(ratios) > 30
    assert sum(one < 1.001 for one in ratios) >= _MOSTLY * len(ratios)
    assert max(ratios) < _AT_WORST


def test_a_threshold_fills_the_buckets_of_each_kind():
    """As DistributedDataParallel does, which closes a bucket when it has reached its limit."""
    rows = [("a", 4), ("b", 1), ("a", 7), ("b", 1), ("a", 2), ("b", 9), ("a", 1), ("b", 1)]
    trace = Trace(
        "small",
        tuple(
            Tensor(f"t{i}", size << 20, kind, float(i), 0.0) for i, (kind, size) in enumerate(rows)
        ),
        0.0,
        7.0,
        "modelled",
    )
    plan = planners.plan("threshold(10)", trace, Affine(0.1, 1e-9))
    assert plan.buckets == (("t0", "t2"), ("t1", "t3", "t5"), ("t4", "t6"), ("t7",))
    plan = planners.plan("ddp", trace, Affine(0.1, 1e-9))
    assert plan.buckets == (("t0",), ("t1",), ("t2", "t4", "t6"), ("t3", "t5", "t7"))
    plan = planners.plan("single", trace, Affine(0.1, 1e-9))
    assert plan.buckets == (("t0", "t2", "t4", "t6"), ("t1", "t3", "t5", "t7"))


@pytest.mark.parametrize("model", ["resnet50", "densenet201", "resnet152"])
@pytest.mark.parametrize("network", ["10gbe-64", "100gbib-64"])
def test_models_in_half_precision(model, network):
    trace = half_precision(model)
    cost = Affine(*PUBLISHED[network][:2])
    steps = {
        name: planners.plan(name, trace, cost)
        for name in ("threshold(25)", "optimal", "optimal_k", "lanes(4)", "decoupled")
    }
    # Without kinds a plan has more to choose from.
    free = planners.plan("optimal", in_kinds(trace, ["any"] * len(trace.tensors)), cost)
    rival = steps.pop("threshold(25)")
    assert len(rival.buckets) <= 6
    for name, plan in steps.items():
        assert plan.predicted_s < rival.predicted_s, name
        assert plan.predicted_s < 1.03 * free.predicted_s, name
    assert len(steps["optimal_k"].buckets) <= 6


@pytest.mark.parametrize("model", ["resnet50", "densenet201"])
@pytest.mark.parametrize("network", ["10gbe-64", "100gbib-64"])
def test_models_whose_tensors_alternate(model, network):
    trace = models.trace_of(model)
    trace = in_kinds(trace, ["ab"[number % 2] for number in range(len(trace.tensors))])
    cost = Affine(*PUBLISHED[network][:2])
    rival = planners.plan("threshold(25)", trace, cost)
    for name in ("optimal", "optimal_k", "lanes(4)", "decoupled"):
        assert planners.plan(name, trace, cost).predicted_s < rival.predicted_s, name


def test_a_search_tries_the_buckets_of_each_kind():
    a, b = PUBLISHED["10gbe-64"][:2]
    search = PlanSearch("auto", half_precision("resnet50"), Constraints(), (a, b), 1.0)
    while not search.done:
        search.add(0.5, (a, b))
    assert [len(one.plan.buckets) for one in search.contestants if one.plan][-1] == 3


def test_explanations_name_what_divides_buckets():
    trace, cost = half_precision("resnet50"), Affine(*PUBLISHED["10gbe-64"][:2])
    plan = planners.plan("optimal_k", trace, cost)
    text = "\n".join(explain(trace, cost, plan, Sending()))
    assert f"step {plan.predicted_s * 1e3:.1f} ms" in text
    assert f"ends here: bucket {len(plan.buckets) - 1} is of another dtype" in text


def test_buckets_need_no_neighbours_but_the_order_of_the_trace():
    trace = in_kinds(random_trace(random.Random(4), 4), "abab")
    problem = Problem(trace, Affine(0.1, 1e-6))
    for schedule in (ALL_REDUCE, DECOUPLED):
        plan = Plan("optimal", (("t0", "t2"), ("t1", "t3")), schedule)
        simulated = graphs.step_s([trace], plan, problem.cost)
        assert predict(problem, plan) == pytest.approx(simulated, rel=1e-9)
        assert "bucket 1: 2 tensors" in "\n".join(explain(trace, problem.cost, plan, Sending()))
    for buckets in ((("t1", "t3"), ("t0", "t2")), (("t2", "t0"), ("t1", "t3"))):
        with pytest.raises(ValueError, match="not in the order of the trace"):
            predict(problem, Plan("mine", buckets))
