"""Tables of bench.optim, from reports that are made up."""

import pytest

from bench.optim import muon, steps

ABOUT = {
    "machine": {"cpu": "some", "cores": 2},
    "versions": {"torch": "2", "timm": "1"},
    "commit": "0123456789abcdef",
    "load_before": [0.5, 0, 0],
}


def test_a_ratio_is_the_median_over_rounds():
    samples = {"LARS": [1.0, 2.0, 4.0], "other": [2.0, 2.0, 40.0]}
    assert steps.ratio(samples, "LARS", "other") == 2.0


def test_steps():
    samples = {name: [10.0, 30.0, 20.0] for name in steps.CONTENDERS}
    samples["LARS"] = [5.0, 5.0, 5.0]
    made = steps.table({**ABOUT, "runs": [{"threads": 1, "samples_ms": samples}]})
    assert "| LARS | 5.0 ms |" in made
    assert "| torch SGD, foreach | 20.0 ms |" in made
    assert "| LARS: as fast as torch SGD, foreach (goal: 0.8x) | 4.00x |" in made
    assert "some, 2 cores, torch 2, timm 1, commit 012345678, medians of 3 rounds" in made


@pytest.mark.parametrize("divided", [True, False])
def test_muon(divided):
    samples = {"torch": [8.0, 12.0], "divided": [4.0, 4.0], "decides": [1.0, 1.0]}
    row = {"width": 64, "samples_ms": samples, "divided": divided, "predicted_s": 0.0045}
    norms = {"samples_ms": {"all": [3.0, 5.0], "divided": [6.0, 8.0]}}
    made = muon.table({**ABOUT, "jobs": [{"ranks": 2, "rows": [row], "norms": norms}]})
    word = "to divide" if divided else "each does all"
    assert f"| 2 | 64 | 10 ms | 4 ms | 2.50x | 4.5 ms | {word} |" in made
    assert "at 2 ranks: 4 ms if each computes all, 7 ms divided." in made


def test_pages_have_places_for_both_tables():
    page = steps.PAGE.read_text()
    for mark in (steps.MARK, muon.MARK):
        assert page.count(f"<!-- {mark} -->") == page.count(f"<!-- /{mark} -->") == 1
