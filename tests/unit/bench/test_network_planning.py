"""Plans on the bed: cells, traces, contenders and tables."""

from __future__ import annotations

import json

import pytest

from aiacc.planning.cost import Affine
from aiacc.planning.plan import Plan
from aiacc.planning.planners import plan
from bench.network import runs
from bench.network.planning import contenders, tables
from bench.network.planning.cells import (
    MODELS,
    Cell,
    chosen,
    default,
    every,
    paced,
    probe_mib,
    trace_of,
    wire_s,
)
from bench.network.planning.contenders import (
    CONTENDERS,
    FEW,
    PLANNERS,
    plans,
    prediction,
    sent,
    task,
)
from bench.network.workloads import workload

COST = Affine(1e-3, 1e-8)


def test_a_ring_sends_all_but_one_share_twice():
    payload = 1448 / 1514
    assert wire_s(1_000_000, 8 / payload, hosts=2) == pytest.approx(1.0)
    assert wire_s(1_000_000, 8 / payload, hosts=4) == pytest.approx(1.5)


@pytest.mark.parametrize("model", MODELS)
def test_a_ratio_ties_computation_to_the_wire(model):
    cell = Cell(model, 300, 0, 1.5)
    assert cell.work.compute_s == pytest.approx(1.5 * wire_s(workload(model).bytes, 300))
    assert cell.work.bytes == workload(model).bytes
    assert Cell(model, 300, 0, None).work == workload(model)


def test_the_trace_is_what_the_device_does():
    work = workload("densenet201").lasting(3.0)
    trace = trace_of(work)
    assert trace.bytes == work.bytes
    assert trace.compute_s == pytest.approx(3.0)
    assert [tensor.name for tensor in trace.tensors] == [name for name, _ in reversed(work.shapes)]
    first, last = trace.tensors[-1], trace.tensors[0]
    assert first.need_s == 0.0
    assert first.ready_s == pytest.approx(3.0)
    assert last.need_s == pytest.approx(work.forward_s, rel=1e-3)
    assert last.ready_s == pytest.approx(work.forward_s, rel=1e-2)


def test_slow_cells_have_few_steps_and_the_slowest_few_contenders():
    fast, slow, slowest = (paced(Cell("densenet201", mbit, 0)) for mbit in (1000, 300, 100))
    assert fast == Cell("densenet201", 1000, 0)
    assert slow.steps == 1
    assert not slow.few
    assert slowest.few
    names = {one.name for one in contenders.taking_part(slowest, 0)}
    assert names == {*FEW} - {"auto"}


def test_probes_take_about_half_a_second_at_most():
    assert [probe_mib(mbit) for mbit in (10_000, 1000, 300, 100, 1)] == [32, 32, 8, 4, 4]


def test_names_of_cells_are_read_back():
    for cell in [*every(), *default()]:
        found = chosen(cell.name)[0]
        assert (found.name, found.unit) == (cell.name, cell.unit)
    assert len({cell.name for cell in every()}) == len(every())
    published = chosen("resnet50:1000:0:published", ratio=3)[0]
    assert published.ratio is None
    assert chosen("resnet50:1000:0:1", ratio=3)[0].ratio == 3


@pytest.mark.parametrize(
    "name",
    [
        "resnet50",
        "alexnet:1000:0:1",
        "resnet50:0:0:1",
        "resnet50:1:-1:1",
        "vgg16:1:0:x",
        "vgg16:1:0:1:8MiB:2",
    ],
)
def test_other_cells_are_refused(name):
    with pytest.raises(ValueError, match=f"cell '{name}' .expected MODEL:MBIT:DELAY_MS:RATIO"):
        chosen(name)


def test_every_second_round_goes_backwards_and_auto_takes_part_in_some():
    cell = Cell("resnet50", 1000, 0, rounds=2, auto_rounds=1)
    there, back = (contenders.taking_part(cell, number) for number in range(2))
    assert there == list(CONTENDERS)
    assert back == [one for one in reversed(CONTENDERS) if one.name != "auto"]
    only = contenders.taking_part(Cell("resnet50", 1000, 0, rounds=0, auto_rounds=1), 0)
    assert [one.name for one in only] == ["auto"]


def test_every_planner_has_a_contender():
    assert [one.name for one in CONTENDERS if one.planner == one.name] == [*PLANNERS, "auto"]
    assert len({one.name for one in CONTENDERS}) == len(CONTENDERS)


def test_tasks_have_the_plan_in_names_of_the_model():
    work = workload("resnet50")
    trace = trace_of(work)
    made = plans(trace, COST)
    tasks = {one.name: task(one, made, trace) for one in CONTENDERS}
    json.dumps(tasks)
    for name in PLANNERS:
        decoded = Plan.decode(tasks[name]["plan"])
        assert decoded == made[name]
        assert sorted(sum(decoded.buckets, ())) == sorted(name for name, _ in work.shapes)
    assert tasks["decoupled_1"]["plan"] == tasks["decoupled"]["plan"]
    assert tasks["decoupled_1"]["lanes"] == 1
    assert {name for name, told in tasks.items() if told["unsent"]} == {
        one.name for one in CONTENDERS if one.kind == "aiacc" and one.name != "auto"
    }
    assert tasks["auto"]["plan"] == "auto"
    assert tasks["dynamic"]["plan"] is tasks["ddp"]["limits_mib"] is None
    assert len(tasks["ddp_list"]["limits_mib"]) == len(made["optimal"].buckets)


def test_predictions_as_sent_tell_one_bucket_at_a_time_from_several():
    cell = Cell("resnet50", 1000, 0)
    trace, cost = trace_of(cell.work), Affine(5e-3, 1e-8)
    made = plans(trace, cost)
    found = sent(cell, made, trace, cost)
    assert found["per_tensor"] < made["per_tensor"].predicted_s  # startups hide each other
    assert found["per_tensor"] == found["dynamic"]
    assert found["decoupled"] == pytest.approx(found["decoupled_1"])  # the lanes share each bucket
    assert found.keys() == {one.name for one in CONTENDERS} - {"none", "ddp", "ddp_list", "auto"}
    assert prediction(made["per_tensor"])["predicted_s"] == made["per_tensor"].predicted_s


def _run(**medians):
    trace = trace_of(Cell("resnet50", 1000, 10).work)
    made = {name: plan(name, trace, COST) for name in ("optimal", "threshold(25)")}
    jobs = [
        {name: {"seconds": [rounds[number]]} for name, rounds in medians.items()}
        for number in range(2)
    ]
    return {
        "cell": {**vars(Cell("resnet50", 1000, 10)), "name": "resnet50:1000:10:1"},
        "compute_s": 1.0,
        "plans": {
            name: {"predicted_s": 1.1 + number, "buckets": len(of_one.buckets)}
            for number, (name, of_one) in enumerate(made.items())
        },
        "as_sent_s": {name: 1.1 + number for number, name in enumerate(made)},
        "jobs": jobs,
    }


def test_noise_is_the_widest_range_of_the_medians_of_rounds():
    run = _run(optimal=[1.2, 1.1], auto=[1.0, 1.3])
    assert tables.spread_s(run, "optimal") == pytest.approx(0.1)
    assert tables.spread_s(run, "optimal", "auto") == pytest.approx(0.3)
    assert tables.spread_s(run, "ddp") == 0.0
    assert tables.step_s(run, "ddp") is None


def test_exposed_is_what_a_step_without_communication_has_not():
    run = _run(optimal=[1.2, 1.2], none=[1.05, 1.05])
    assert tables.exposed_s(run, "optimal") == pytest.approx(0.15)
    del run["jobs"][0]["none"], run["jobs"][1]["none"]
    assert tables.exposed_s(run, "optimal") == pytest.approx(0.2)


def test_what_the_same_optimizer_takes_without_sending_is_not_exposed():
    run = _run(optimal=[1.2, 1.2], none=[1.05, 1.05])
    for job, alone in zip(run["jobs"], (1.10, 1.14), strict=True):
        job["optimal"]["unsent_s"] = [alone]
    assert tables.unsent_s(run, "optimal") == pytest.approx(1.12)
    assert tables.exposed_s(run, "optimal") == pytest.approx(0.08)
    assert tables.noise_s(run, "optimal") == pytest.approx(0.04)
    assert tables.unsent_s(run, "auto") == pytest.approx(1.05)
    assert tables.unsent_lines([run]) == (
        "* resnet50:1000:10:1: the slowest rank's steps in which nothing is sent take 1120 "
        "(`optimal`) to 1120 ms (`optimal`)"
    )
    assert tables.unsent_lines([_run(optimal=[1.2, 1.2])]) == ""


@pytest.mark.parametrize(
    ("measured", "noise", "near"), [(1.15, 0, True), (1.16, 0, False), (1.2, 0.2, True)]
)
def test_a_prediction_is_near_by_its_share_or_within_noise(measured, noise, near):
    assert tables.is_near(measured, 1.0, noise) == near


def test_verdicts_say_what_was_missed():
    run = _run(**{"optimal": [1.11, 1.11], "threshold(25)": [2.2, 2.1], "auto": [2.5, 2.3]})
    found = {what: (value, good) for what, value, good in tables.verdicts(run)}
    optimal, auto, near = found.values()
    assert optimal == ("-1040 ms, noise 100 ms", True)
    assert auto == ("+250 ms, noise 200 ms", False)
    assert near == ("2 of 2 plans", True)  # exposed 0.11 of 0.1, 1.15 of 1.1
    run["as_sent_s"]["optimal"] = 1.05
    *_, (what, value, good) = tables.verdicts(run)
    assert (what, value, good) == (
        "exposed communication within 15% of the prediction, or within noise", "1 of 2 plans", False
    )  # fmt: skip
    assert tables.verdicts_table([run]).count("**no**") == 2
    assert "**110 / 50** (100)" in tables.exposed_table([run])
    ddp = _run(optimal=[1.2, 1.2], ddp=[1.1, 1.1])
    (what, value, good), *_ = tables.verdicts(ddp)
    assert (what, value, good) == (
        "`optimal` not slower than DDP/gloo with 25 MB beyond noise", "+100 ms, noise 0 ms", False
    )  # fmt: skip


def test_tables_have_a_line_for_each_cell_and_name_what_is_missing():
    run = _run(**{"optimal": [1.2, 1.1], "none": [1.0, 1.0]})
    run["jobs"][0]["auto"] = {"skipped": "unknown"}
    run["jobs"][1]["decoupled"] = {"failed": "the job ended with code 1"}
    for table in (tables.steps_table([run, run]), tables.buckets_table([run, run])):
        assert len(table.splitlines()) == 4
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "1150 ± 50" in tables.steps_table([run])
    assert tables.left_out([run]).splitlines() == [
        "* resnet50:1000:10:1, auto: unknown",
        "* resnet50:1000:10:1, decoupled: the job ended with code 1",
    ]


def test_a_cell_takes_the_place_of_its_predecessor_only(tmp_path):
    path = tmp_path / "runs.json"
    first, other = Cell("resnet50", 1000, 0), Cell("resnet50", 300, 0)
    for cell, value in ((first, 1), (other, 2), (first, 3)):
        runs.record(path, {"cell": {"name": cell.name}, "value": value})
    assert [run["value"] for run in runs.load(path)] == [2, 3]
