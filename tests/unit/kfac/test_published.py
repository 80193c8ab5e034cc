"""The paper's figures are copied rightly, and calibrations are what they say they are.

That simulated seconds follow the published ones says tests/unit/bench/test_figures.py.
"""

import pytest

from aiacc.kfac import published


def test_the_overlap_is_what_fits_best():
    errors = [published.overlap_error(published.OVERLAP + 0.01 * shift) for shift in (-1, 0, 1)]
    assert min(errors) == errors[1]


def test_other_models_are_named():
    with pytest.raises(ValueError, match=r"model 'vgg16' .expected one of resnet50, resnet152"):
        published.layers("vgg16")
    with pytest.raises(ValueError, match="model 'x'"):
        published.model("x")


def test_totals_of_the_paper_add_up():
    """Copied figures: a total is the sum of its parts, to a millisecond or two."""
    for name, one in published.MEASURED.items():
        before = one.sgd_s + one.factor_s
        for total, parts in (
            (one.totals_s[0], (one.bulk_s, one.inversion_s)),
            (one.totals_s[1], (one.bulk_s, *one.in_turn_s)),
            (one.totals_s[2], (one.rule_s, *one.placed_s)),
            (one.pipeline_alone_s, (one.rule_s, one.inversion_s)),
            (one.placement_alone_s, (one.bulk_s, *one.placed_s)),
        ):
            assert total == pytest.approx(before + sum(parts), abs=0.025), name
