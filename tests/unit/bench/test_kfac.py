"""docs/kfac_simulated.md states what its result file has, and that is what the simulator says."""

import json

import pytest

from aiacc.kfac import published
from bench import kfac, kfac_page

REPORT = json.loads(kfac.RESULT.read_text())


def test_the_page_has_the_tables_of_the_file():
    page = kfac_page.PAGE.read_text()
    assert kfac_page.with_tables(page, REPORT) == page


def test_the_file_has_what_the_simulator_says():
    found = json.loads(json.dumps(kfac.of_model("resnet50")))
    assert flat(found) == pytest.approx(flat(REPORT["models"]["resnet50"]), rel=1e-9)
    assert REPORT["calibrated"]["overlap"] == published.OVERLAP
    assert REPORT["kind"] == "simulated"


def test_the_file_says_how_far_totals_are_off():
    errors = REPORT["sensitivity"]["as calibrated"]
    assert max(map(abs, errors.values())) < 0.1
    for model in REPORT["models"].values():
        assert model["totals_s"] == pytest.approx(model["published_totals_s"], rel=0.1)
        assert model["ablation_s"] == pytest.approx(model["published_ablation_s"], rel=0.1)
        assert model["ours_s"]["all"] < min(model["totals_s"])


def flat(fields, at=""):
    """Numbers by where they are."""
    if isinstance(fields, dict):
        items = fields.items()
    elif isinstance(fields, list):
        items = enumerate(fields)
    else:
        return {at: fields} if isinstance(fields, (int, float)) else {}
    return {
        name: value for key, entry in items for name, value in flat(entry, f"{at}/{key}").items()
    }
