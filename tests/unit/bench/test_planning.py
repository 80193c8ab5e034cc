"""docs/planning.md states what its result file has, and that is what the planners say today."""

import json

import pytest

from aiacc.planning import models, planners
from aiacc.planning.cost import Affine, Analytic
from aiacc.planning.network import network_of
from aiacc.planning.problem import Problem
from bench import planning

REPORT = json.loads(planning.RESULT.read_text())


def test_the_page_has_the_tables_of_the_file():
    page = planning.PAGE.read_text()
    assert planning._with_tables(page, REPORT) == page


@pytest.mark.parametrize("number", range(len(planning._STEPS)))
def test_the_file_has_what_the_planners_say(number):
    model, network = planning._STEPS[number]
    row = REPORT["steps"][number]
    trace, cost = models.trace_of(model), network_of(network).cost()
    for name in ("per_tensor", "threshold(25)", "mgwfbp_paper", "optimal"):
        plan = planners.plan(name, trace, cost)
        assert plan.predicted_s == pytest.approx(row["step_s"][name], rel=1e-9), name


def test_efficiencies_equal_an_independent_computation():
    """In percent, for rings of ResNet-50: per_tensor, threshold(25), mgwfbp_paper, optimal."""
    expected = {
        ("10 Gbit/s", 64): (29, 83, 84, 86),
        ("10 Gbit/s", 256): (9, 72, 55, 77),
        ("10 Gbit/s", 1024): (3, 47, 50, 59),
        ("10 Gbit/s", 2048): (1, 32, 44, 47),
        ("100 Gbit/s", 256): (49, 98, 99, 99),
        ("100 Gbit/s", 1024): (14, 95, 89, 96),
        ("100 Gbit/s", 2048): (7, 91, 86, 93),
    }
    rows = {(row["link"], row["world"]): row["efficiency"] for row in REPORT["scaling"]}
    for key, values in expected.items():
        found = [
            100 * rows[key][name]
            for name in ("per_tensor", "threshold(25)", "mgwfbp_paper", "optimal")
        ]
        assert found == pytest.approx(values, abs=1.0), key


def test_thresholds_for_decoupled_steps_equal_an_independent_computation():
    """Milliseconds: buckets of 25 MiB, and of the best size."""
    expected = (
        (284, 271), (273, 254), (269, 254), (351, 345), (289, 279), (251, 234), (616, 570),
        (443, 443), (400, 400),
    )  # fmt: skip
    for row, steps in zip(REPORT["steps"], expected, strict=True):
        found = row["dear"]["step_s"] * 1e3, row["dear"]["best_s"] * 1e3
        assert found == pytest.approx(steps, rel=0.01), row["model"]
        assert row["step_s"]["decoupled"] <= row["dear"]["best_s"] * 1.002
    trace, cost = models.trace_of("densenet201"), network_of("10gbe-64").cost()
    dear = REPORT["steps"][5]["dear"]
    assert planning._dear(Problem(trace, cost), 25) == pytest.approx(dear["step_s"], rel=1e-9)


@pytest.mark.parametrize(
    ("cost", "ratios"),
    [
        (Affine(1.37e-3, 1.66e-9), (1.27, 1.41)),
        (Affine(0.95 * 1.37e-3, 0.95 * 1.66e-9), (1.22, 1.39)),
        (network_of("10gbe-8").cost(), (1.00, 1.21)),
        (Analytic("ring", 45.25e-6, 1.2 * 8 / (9 * 2**30), 2.5e-9, 8), (1.18, 1.51)),
    ],
)
def test_gains_at_eight_nodes_are_those_that_the_page_states(cost, ratios):
    """Of merging, over `per_tensor` and over `single`; 1.22 and 1.39 were measured."""
    speed_up = planning._infocom_with(cost)
    found = [speed_up["mgwfbp_paper"] / speed_up[name] for name in ("per_tensor", "single")]
    assert found == pytest.approx(ratios, abs=0.006)
