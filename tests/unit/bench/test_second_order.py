"""How trials are chosen, and what docs/kfac.md makes of what was measured."""

import json

import pytest
import torch

from bench.network.runs import load
from bench.second_order import contenders, convergence_report, parts, steps
from bench.second_order.convergence import RESULT, thinned
from bench.second_order.workloads import WORKLOADS, workload


def test_the_page_has_the_tables_of_the_files():
    page = parts.PAGE.read_text()
    both = (json.loads(path.read_text()) for path in (parts.RESULT, parts.STEPS_RESULT))
    assert parts.with_tables(page, *both) == page
    found = load(RESULT)
    assert convergence_report.with_section(page, found) == page
    for work in WORKLOADS:
        for one in contenders.CONTENDERS:
            trials, others = convergence_report.runs_of(found, work, one.name)
            assert len(trials) == contenders.TRIALS
            assert len(others) >= 3


def test_everybody_has_trials_of_the_same_places_in_ranges_of_its_own():
    for one in contenders.CONTENDERS:
        assert len(one.ranges) == 2
        found = [contenders.trial(one, number) for number in range(contenders.TRIALS)]
        assert len({tuple(tuned.values()) for tuned in found}) == contenders.TRIALS
        for range_ in one.ranges:
            values = [tuned[range_.name] for tuned in found]
            assert all(range_.low < value < range_.high for value in values)
            assert min(values) < range_.low * (range_.high / range_.low) ** 0.15
            assert max(values) > range_.low * (range_.high / range_.low) ** 0.85
    half = contenders.Range("lr", 1e-4, 1e-2).at(0.5)
    assert half == pytest.approx(1e-3)


def test_names_that_nobody_has():
    with pytest.raises(ValueError, match="expected one of sgd, adam, muon, soap, kfac"):
        contenders.contender("lion")
    with pytest.raises(ValueError, match="expected one of autoencoder, digits"):
        workload("text")


def _run(contender, seed, cpu_s, step, *, reached=True, lowest=0.005):
    return {
        "workload": "autoencoder",
        "contender": contender,
        "tuned": {"lr": 0.1, "1 - momentum": 0.05},
        "seed": seed,
        "reached": reached,
        "lowest": lowest,
        "curve": [[step, cpu_s, 2 * cpu_s, lowest]],
    }


def test_the_best_trial_is_the_quickest_else_the_closest():
    slow, quick = _run("sgd", 0, 2.0, 100), _run("sgd", 0, 1.0, 200)
    never = _run("sgd", 0, 0.5, 300, reached=False)
    assert convergence_report.best_of([slow, quick, never]) is quick
    near = _run("sgd", 0, 9.0, 300, reached=False, lowest=0.007)
    lost = _run("sgd", 0, 0.1, 10, reached=False, lowest=None)
    far = _run("sgd", 0, 3.0, 300, reached=False, lowest=0.1)
    assert convergence_report.best_of([lost, far, near]) is near


def test_a_line_of_the_table_says_how_many_seeds_reached_the_target():
    found = [
        _run("sgd", 0, 1.0, 100),
        _run("sgd", 0, 1.0, 100, reached=False),
        _run("sgd", 1, 1.0, 100),
        _run("sgd", 2, 3.0, 200),
        _run("adam", 0, 1.0, 100),
        _run("adam", 1, 1.0, 100),
        _run("adam", 2, 4.0, 400, reached=False),
        _run("muon", 0, 1.0, 100, reached=False),
        _run("muon", 1, 1.0, 100, reached=False),
    ]
    lines = convergence_report.table(found).splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["SGD", "Adam", "Muon"]
    assert "| 1 of 2 | lr 0.1, 1 - momentum 0.05 | 2 of 2 | 2.00 (1.00 to 3.00) | 150 (" in lines[0]
    assert "| 1 of 2 | 1.00 to 1.00, not always | 100 to 100, not always | 10.00 |" in lines[1]
    assert "| 0 of 1 | never | never | 10.00 |" in lines[2]


def test_a_plot_of_seeds_that_are_no_trials():
    figure = convergence_report.plot([_run("sgd", 0, 1.0, 9), _run("sgd", 1, 1.0, 100)])
    assert [len(axis.lines) for axis in figure.axes] == [2, 1, 2, 1]


def test_curves_keep_their_last_point():
    curve = list(range(150))
    assert thinned(curve, 0) == [149]
    found = thinned(curve, 40)
    assert found[-1] == 149
    assert len(found) <= 41
    assert thinned([3], 40) == thinned([3], 0) == [3]


def test_ratios_of_the_parts_are_those_of_medians():
    report = {
        "rows": [{"title": "A", "samples_s": {"ours": [1, 2, 9], "peer": [4, 4, 4], "x": [1]}}],
        "when": "now",
        "commit": "0" * 40,
        "repeats": 3,
        "machine": {"cpu": "some"},
        "versions": {"torch": "2"},
        "load_before": [0.1],
        "load_after": [0.2],
    }
    assert "| A | 2 s | 4 s | 0.50 | x: 1 s |" in parts.table(report)


def test_steps_are_given_beside_those_without():
    samples = {"without": [1.0, 1.0], "every 1": [3.0, 3.0], "every 10": [1.5, 1.5]}
    found = steps.table([{"title": "some", "batch": 8, "samples_s": samples}])
    assert "| step without K-FAC | every 1 step | every 10 steps |" in found
    assert "| some, batch 8 | 10.00 ms | 30.00 ms (3.00 x) | 15.00 ms (1.50 x) |" in found


def test_results_that_differ_are_no_measurement():
    row = parts.Row("a", "a", {"ours": lambda: torch.ones(2), "peer": lambda: 2 * torch.ones(2)})
    row.alike.add("peer")
    with pytest.raises(SystemExit, match=r"a: peer differs by 1\.0"):
        parts.measured(row, 1)


def test_targets_are_below_what_an_untrained_model_has():
    for work in WORKLOADS:
        assert work.measure(work.model()) > 2 * work.target
