"""Result files of simulations have what planners and simulators say today."""

import json

import pytest

from aiacc.kfac import published
from aiacc.planning import models, planners
from aiacc.planning.network import network_of
from aiacc.planning.problem import Problem
from bench import kfac, planning

REPORT = json.loads(planning.RESULT.read_text())
KFAC = json.loads(kfac.RESULT.read_text())
PLANNERS = ("per_tensor", "threshold(25)", "mgwfbp_paper", "optimal")


@pytest.mark.parametrize("number", range(len(planning.STEPS)))
def test_the_file_has_what_the_planners_say(number):
    row, (model, network) = REPORT["steps"][number], planning.STEPS[number]
    trace, cost = models.trace_of(model), network_of(network).cost()
    found = {name: planners.plan(name, trace, cost).predicted_s for name in PLANNERS}
    assert found == pytest.approx({name: row["step_s"][name] for name in PLANNERS}, rel=1e-9)


def test_efficiencies_equal_an_independent_computation():
    """In percent, for rings of ResNet-50, by PLANNERS."""
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
        found = [100 * rows[key][name] for name in PLANNERS]
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
    assert planning.dear(Problem(trace, cost), 25) == pytest.approx(dear["step_s"], rel=1e-9)


def test_the_file_has_what_the_simulator_of_kfac_says():
    found = json.loads(json.dumps(kfac.of_model("resnet50")))
    assert _flat(found) == pytest.approx(_flat(KFAC["models"]["resnet50"]), rel=1e-9)
    assert (KFAC["kind"], KFAC["calibrated"]["overlap"]) == ("simulated", published.OVERLAP)
    assert max(map(abs, KFAC["sensitivity"]["as calibrated"].values())) < 0.1
    for model in KFAC["models"].values():
        assert model["totals_s"] == pytest.approx(model["published_totals_s"], rel=0.1)
        assert model["ablation_s"] == pytest.approx(model["published_ablation_s"], rel=0.1)
        assert model["ours_s"]["all"] < min(model["totals_s"])


def _flat(fields, at=""):
    """Numbers by where they are."""
    if not isinstance(fields, dict | list):
        return {at: fields} if isinstance(fields, int | float) else {}
    items = fields.items() if isinstance(fields, dict) else enumerate(fields)
    return {
        name: value for key, entry in items for name, value in _flat(entry, f"{at}/{key}").items()
    }
