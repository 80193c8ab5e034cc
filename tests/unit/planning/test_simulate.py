"""The simulator: order, refusals, what it draws. Its times are the planners': test_planners.py."""

import json
import math
import random

import pytest

from aiacc.planning import graphs, planners
from aiacc.planning.cost import Affine
from aiacc.planning.plan import Plan
from aiacc.planning.simulate import Activity, simulate
from aiacc.planning.trace import TraceError, slowest
from tests.support.timelines import check_rows
from tests.unit.planning.instances import made_trace, random_trace


def test_a_resource_begins_in_order_and_is_busy_while_it_does_something():
    activities = [
        Activity("slow", "cpu", (3.0,)),
        Activity("first", "net", (1.0,), ("slow",)),
        Activity("second", "net", (1.0,)),
    ]
    timeline = simulate(activities)
    assert (timeline.of("second").start_s, timeline.end_s) == (4, 5)
    assert timeline.busy_s("net") == 2


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (("a", "x", (1.0,), ("b",)), ("b", "y", (1.0,), ("a",)), "a waits for what never ends"),
        (("a", "x", (1.0,)), ("a", "y", (1.0,)), "unique"),
        *(
            (("a", "x", seconds), ("b", "y", (1.0,)), r"a takes .*expected finite seconds, >= 0")
            for seconds in ((), (-1.0,), (math.nan,), (math.inf,), (1.0, math.nan))
        ),
    ],
)
def test_activities_that_never_begin_or_end_are_named(one, other, text):
    with pytest.raises(ValueError, match=text):
        simulate([Activity(*one), Activity(*other)])


def test_chrome_trace():
    activities = [
        Activity("a", "cpu", (0.5,)),
        *(Activity(name, "net", (1.0,), ("a",)) for name in ("b", "c", "d")),
    ]
    events = json.loads(simulate(activities, {"net": 2}).chrome_trace())["traceEvents"]
    check_rows(events)
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert [*rows.values()] == ["cpu", "net", "net"]
    done = {event["name"]: event for event in events if event["ph"] == "X"}
    assert {n: (e["ts"], e["dur"]) for n, e in done.items()} == {
        "a": (0, 500_000),
        "b": (500_000, 1_000_000),
        "c": (500_000, 1_000_000),
        "d": (1_500_000, 1_000_000),
    }
    assert done["b"]["tid"] == done["d"]["tid"] != done["c"]["tid"]


@pytest.mark.parametrize("name", ["per_tensor", "optimal", "lanes(2)"])
def test_ranks_that_differ_wait_for_the_slowest_of_each_bucket(name):
    """As if the slowest were everywhere, where all ranks' tensors come in the same order."""
    rng = random.Random(1)
    for _ in range(20):
        sizes = [rng.choice((10, 40_000, 250_000)) for _ in range(8)]
        ready = [sorted(rng.uniform(0.5, 2) for _ in sizes) for _ in range(2)]
        one, other = (made_trace(zip(sizes, of, strict=True), 0.5) for of in ready)
        cost = Affine(0.1, 1e-6)
        together = slowest([one, other])
        plan = planners.plan(name, together, cost)
        assert graphs.step_s([one, other], plan, cost) == pytest.approx(
            graphs.step_s([together], plan, cost)
        )
        assert graphs.step_s([one, other], plan, cost) >= graphs.step_s([one], plan, cost)


@pytest.mark.parametrize("schedule", ["all_reduce", "decoupled"])
def test_a_plan_of_other_tensors_is_refused(schedule):
    trace, cost = random_trace(random.Random(2), 3), Affine(0.1, 1e-6)
    for buckets, text in (
        ((("t0", "t1"),), "'t2' is in the traces only"),
        ((("t0", "t1"), ("t2", "u")), "'u' is in the plan only"),
    ):
        with pytest.raises(ValueError, match=f"{text} .*plan again"):
            graphs.step_s([trace], Plan("some", buckets, schedule), cost)
    other = random_trace(random.Random(2), 4)
    with pytest.raises(TraceError, match="rank 1 has other tensors than rank 0"):
        graphs.step_s([trace, other], Plan("some", (("t0", "t1", "t2"),), schedule), cost)
    with pytest.raises(TraceError, match="no ranks"):
        graphs.step_s([], Plan("some", (("t0",),)), cost)


def test_a_chart_of_thousands_of_activities_has_few_artists(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    from aiacc.planning import chart

    figures = []
    make = chart._figure
    monkeypatch.setattr(chart, "_figure", lambda title: figures.append(make(title)) or figures[-1])
    activities = [Activity(f"a{i}", "cpu", (0.5,)) for i in range(2000)]
    activities += [Activity(f"b{i}", "network", (1.0,), (f"a{i}",)) for i in range(2000)]
    timeline = simulate(activities, {"network": 2})
    chart.gantt({"some": timeline}, tmp_path / "chart.svg", "some")
    bars = figures[0][1].collections
    assert len(bars) == 3  # the CPU, and the network's two lanes
    assert sum(len(bar.get_paths()) for bar in bars) == 4000
