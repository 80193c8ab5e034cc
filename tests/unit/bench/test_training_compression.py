"""docs/compression.md states what the result file of the trainings has; how it is computed."""

import pytest

from aiacc.compression.codecs import NONE, MSTopK
from bench.network.runs import load
from bench.training.compression import contenders, report


def test_the_page_has_the_table_of_the_file():
    page = report.PAGE.read_text()
    assert report.with_section(page, load(report.RESULT)) == page


def test_warm_up_is_dense_then_falls_to_the_density():
    policy = contenders.contender("mstopk_warm").policy(1000)
    assert policy.codec_at(99) == NONE
    falling = [policy.codec_at(step).density for step in (100, 150, 200, 250, 299)]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > falling[-1] > 0.01
    assert policy.codec_at(300) == MSTopK(0.01)


@pytest.mark.parametrize("one", contenders.CONTENDERS, ids=lambda one: one.name)
def test_contenders_without_warm_up_code_from_the_first_step_on(one):
    policy = one.policy(1000)
    assert (policy.codec_at(0) == policy.codec) != one.warms_up
    assert policy.keeps == one.keeps


def test_everybody_runs_with_one_seed_before_the_next():
    found = contenders.tasks(contenders.DIGITS, 2, ["dense", "int8"])
    order = [(task.seed, task.contender) for task in found]
    assert order == [(seed, name) for seed in (1, 2, 3) for name in ("dense", "int8")]
    assert {task.steps for task in found} == {contenders.STEPS[contenders.DIGITS, 2]}


@pytest.mark.parametrize(
    ("workload", "ranks", "names", "said"),
    [
        ("digits", 3, [], "give --steps"),
        ("digits", 2, ["int9"], "expected one of dense"),
        ("text", 2, ["mstopk_momentum"], "mstopk_momentum with 'text' .*which SGD trains"),
    ],
)
def test_what_cannot_run_is_named(workload, ranks, names, said):
    with pytest.raises(ValueError, match=said):
        contenders.tasks(workload, ranks, names)


def test_what_is_for_sgd_runs_where_it_trains():
    everybody = {one.name for one in contenders.CONTENDERS}
    for_sgd = {one.name for one in contenders.CONTENDERS if one.is_for_sgd}
    assert {task.contender for task in contenders.tasks("digits", 2, [])} == everybody
    assert {task.contender for task in contenders.tasks("text", 2, [])} == everybody - for_sgd


def _run(contender, losses, held_out=1.0, seed=1, sent=1000):
    task = {"workload": "digits", "ranks": 2, "contender": contender, "seed": seed}
    return {
        "task": {**task, "steps": 20 * len(losses)},
        "interval": 20,
        "losses": losses,
        "held_out": held_out,
        "bytes": [sent] * len(losses),
    }


def test_gaps_are_those_to_float32_with_the_same_seed():
    falling = [2.0] * 18 + [1.2, 0.8]
    group = [
        _run("dense", falling),
        _run("dense", [4.0] * 20, seed=2),
        _run("int8", [9.0] * 18 + [1.5, 0.7], held_out=1.5),
        _run("int8", [3.0] * 20, seed=2),
    ]
    assert report.final_loss(group[0]) == pytest.approx(1.0)
    gaps = [report.gap_of(run, group, report.final_loss) for run in group]
    assert gaps == pytest.approx([0, 0, 10, -25])
    assert report.gap_of(group[2], group, report.held_out_loss) == pytest.approx(50)


def test_bytes_count_until_the_mean_of_five_intervals_is_low_enough():
    dense = _run("dense", [2.0] * 10 + [1.0] * 10)
    early = _run("int8", [1.0] * 4 + [1.2, 1.0] + [3.0] * 14, sent=10)
    never = _run("int4", [1.06] * 20)
    group = [dense, early, never]
    assert report.to_target(dense, group, dense["bytes"]) == 15_000
    assert report.to_target(early, group, early["bytes"]) == 50
    assert report.to_target(never, group, never["bytes"]) is None


def test_seconds_count_where_each_rank_has_a_capped_interface():
    runs = [
        _run("dense", [2.0] * 10 + [1.0] * 10),
        _run("int8", [2.0] * 5 + [1.0] * 15),
        _run("int4", [2.0] * 20),
    ]
    for run, seconds in zip(runs, (4.0, 1.0, 2.0), strict=True):
        run["task"]["mbit"], run["interval_seconds"] = 100.0, [seconds] * 20
    found = report.seconds_table(runs).splitlines()
    assert found[2:] == [
        "| digits, 400 steps | 2 | 100 | float32 | 1 | 200.0 | 60.0 | 1.00 |",
        "| digits, 400 steps | 2 | 100 | int8 | 1 | 50.0 | 10.0 | 0.17 |",
        "| digits, 400 steps | 2 | 100 | int4, feedback | 1 | 100.0 | never |  |",
    ]
    assert report.table(runs).count("\n") == 1


def test_runs_without_float32_of_their_seed_do_not_count():
    group = [_run("dense", [1.0] * 20), _run("int8", [1.0] * 20), _run("int8", [1.0] * 20, seed=2)]
    assert report.groups(group) == {("digits", 2, 400, 0.0): group[:2]}
    assert report.table(group).count("int8") == 1
