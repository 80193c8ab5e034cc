"""The paper's figures by the simulator; calibrations are what they say they are.

Relative differences of 10 and 12 % are no tolerance of a computation: costs were fitted to some of
the published seconds, and the others, of 64 GPUs that nobody here has, then follow so closely. A
change of the simulator that makes them follow less has to say why.
"""

import pytest

from aiacc.kfac import published
from aiacc.kfac.methods import (
    D_KFAC,
    MPD_KFAC,
    PIPELINE_ALONE,
    PLACEMENT_ALONE,
    SPD_KFAC,
    ours,
    run,
)
from aiacc.kfac.placement import by_dimension, in_turn
from aiacc.kfac.stage import StageCosts, stage

METHODS = (D_KFAC, MPD_KFAC, SPD_KFAC)


def simulated_s(name, method):
    found = run(method, published.model(name), published.costs())
    return found.step.seconds + published.unexplained_s(name)


@pytest.mark.parametrize("name", published.MEASURED)
def test_totals_are_within_ten_percent(name):
    measured = published.MEASURED[name]
    for method, seconds in zip(METHODS, measured.totals_s, strict=True):
        assert simulated_s(name, method) == pytest.approx(seconds, rel=0.1), method.title
    assert simulated_s(name, PIPELINE_ALONE) == pytest.approx(measured.pipeline_alone_s, rel=0.1)
    assert simulated_s(name, PLACEMENT_ALONE) == pytest.approx(measured.placement_alone_s, rel=0.1)


@pytest.mark.parametrize("name", published.MEASURED)
def test_ours_is_shorter_than_all_of_them(name):
    model, costs = published.model(name), published.costs()
    found = ours(model, costs).step.seconds
    assert found < min(run(method, model, costs).step.seconds for method in METHODS)


@pytest.mark.parametrize("name", published.MEASURED)
def test_inversions_by_placement_follow_from_those_of_one_gpu(name):
    """The polynomial was fitted to sums. What it says of the busiest rank was not."""
    measured, model = published.MEASURED[name], published.model(name)
    costs = StageCosts(published.inversion(), published.SINGLE, overlap=0.0)
    total = sum(published.inversion().seconds(dim) for dim in model.dims)
    assert total == pytest.approx(measured.inversion_s, rel=0.01)
    placed = stage(model.dims, by_dimension(model.dims, 64), 64, costs)
    assert placed.compute_s == pytest.approx(measured.placed_s[0], rel=0.12)
    assert placed.finish_s == pytest.approx(sum(measured.placed_s), rel=0.12)
    turns = stage(model.dims, in_turn(model.dims, 64), 64, costs)
    assert turns.finish_s == pytest.approx(sum(measured.in_turn_s), rel=0.12)


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
