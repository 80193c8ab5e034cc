"""docs/planning.md states what its result file has, and that is what the planners say today."""

import json

import pytest

from aiacc.planning import models, planners
from aiacc.planning.network import network_of
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
