import dataclasses
import itertools

import pytest

from aiacc.kfac.costs import Polynomial
from aiacc.kfac.methods import SPD_KFAC, Model, ours, run
from aiacc.kfac.step import NETWORK, Costs
from aiacc.kfac.timeline import timeline_of
from aiacc.planning.cost import Affine
from aiacc.planning.models import MODELS

MODEL = Model("ResNet-50", MODELS["resnet50"].parameters(), 0.132, 0.2115)
COSTS = Costs(4, Polynomial(1e-4, 1e-9, 1e-13), Affine(2e-3, 3e-10), Affine(1e-3, 3e-10))


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_a_timeline_has_the_whole_step(overlap):
    costs = dataclasses.replace(COSTS, overlap=overlap)
    for found in (ours(MODEL, costs), run(SPD_KFAC, MODEL, costs)):
        timeline = timeline_of(found, MODEL, costs)
        assert timeline.end_s == pytest.approx(found.step.seconds, rel=1e-9)
        assert timeline.busy_s("compute") == pytest.approx(found.step.compute_s)
        inverted = [i for i in timeline.intervals if i.activity.resource.startswith("rank")]
        owned = sum(owner is not None for owner in found.owners)
        assert len(inverted) == owned + 4 * (len(found.owners) - owned)
        assert max(i.end_s for i in inverted) == pytest.approx(
            found.step.compute_s + found.step.exposed_s + found.step.stage.compute_s
        )


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_the_network_carries_one_thing_at_a_time_and_nothing_before_it_is_there(overlap):
    costs = dataclasses.replace(COSTS, overlap=overlap)
    found = ours(MODEL, costs)
    timeline = timeline_of(found, MODEL, costs)
    carried = [i for i in timeline.intervals if i.activity.resource == NETWORK]
    assert len(carried) == len(found.buckets) + len(found.step.stage.sent)
    for one, other in itertools.pairwise(carried):
        assert other.start_s >= one.end_s - 1e-9
    done = {i.activity.name: i.end_s for i in timeline.intervals}
    for interval, bucket in zip(carried, found.buckets, strict=False):
        assert interval.start_s >= max(done[f"compute {n}"] for n in bucket.tensors) - 1e-9
    for interval, sent in zip(carried[len(found.buckets) :], found.step.stage.sent, strict=True):
        start_s = found.step.compute_s + found.step.exposed_s
        assert interval.start_s == pytest.approx(start_s + sent.start_s)
