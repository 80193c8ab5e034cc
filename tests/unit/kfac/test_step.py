import dataclasses
import itertools
import random

import pytest

from aiacc.kfac import published
from aiacc.kfac.costs import Polynomial
from aiacc.kfac.methods import D_KFAC, MPD_KFAC, SPD_KFAC, Model, ours, run
from aiacc.kfac.modelled import factor_names, is_factor, kfac_trace
from aiacc.kfac.stage import Stage
from aiacc.kfac.step import (
    HOROVOD,
    INTERLEAVED,
    NETWORK,
    PER_TENSOR,
    Costs,
    hiding,
    plan_buckets,
    simulated,
    step,
)
from aiacc.kfac.timeline import timeline_of
from aiacc.planning.cost import Affine
from aiacc.planning.models import MODELS, modelled
from aiacc.planning.models.kronecker import layers_of
from aiacc.planning.models.layers import Layers

COSTS = Costs(8, Polynomial(1e-4, 1e-9, 1e-13), Affine(2e-3, 3e-10), Affine(1e-3, 3e-10))


def network(rng):
    net = Layers()
    for number in range(rng.randint(1, 6)):
        net.conv(f"conv{number}", rng.choice((8, 32, 64)), rng.choice((1, 3)), 28, bias=True)
        net.norm(f"norm{number}")
    net.linear("fc", net.channels, 10)
    return net.parameters


def trace_of(rng):
    return kfac_trace("random", network(rng), rng.random() * 0.1, rng.random() * 0.1)


def resnet50():
    return kfac_trace("ResNet-50", MODELS["resnet50"].parameters(), 0.132, 0.2115)


def test_a_trace_has_all_factors_and_gradients_a_in_the_forward_pass_and_g_behind_its_gradient():
    trace = resnet50()
    assert trace.compute_s == pytest.approx(0.132 + 0.2115)
    factors = [tensor for tensor in trace.tensors if is_factor(tensor.name)]
    assert len(factors) == 2 * 54
    assert sum(factor.bytes for factor in factors) == 4 * (62_348_671 + 14_618_356)
    layers = layers_of(MODELS["resnet50"].parameters())
    names = [factor_names(layer.name) for layer in layers]
    forward = [a for a, _ in names]
    assert [factor.name for factor in factors] == forward + [g for _, g in reversed(names)]
    gradients = [tensor for tensor in trace.tensors if not is_factor(tensor.name)]
    assert [(t.name, t.bytes) for t in gradients] == [
        (t.name, t.bytes) for t in modelled("", MODELS["resnet50"].parameters(), 1.0).tensors
    ]
    ready = {tensor.name: tensor.ready_s for tensor in trace.tensors}
    for layer in layers_of(MODELS["resnet50"].parameters()):
        a, g = factor_names(layer.name)
        assert 0 < ready[a] <= trace.forward_s
        assert trace.forward_s < ready[layer.parameters[0]] < ready[g]
    assert ready["fc A"] < trace.forward_s  # then comes the layer itself
    assert ready["conv1 G"] == pytest.approx(trace.compute_s)


def test_networks_without_layers_or_figures_and_shares_beyond_all_are_refused():
    net = Layers()
    net.norm("norm")
    with pytest.raises(ValueError, match="net has no layer with factors"):
        kfac_trace("net", net.parameters, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"overlap 1.5 .expected 0 to 1"):
        dataclasses.replace(COSTS, overlap=1.5)
    for find in (published.layers, published.model):
        with pytest.raises(ValueError, match=r"model 'vgg16' .expected one of resnet50, resnet152"):
            find("vgg16")


def test_everything_travels_once_and_the_exact_plan_is_never_longer_than_others_of_whole_layers():
    rng = random.Random(2)
    shorter = 0
    for _ in range(40):
        trace = trace_of(rng)
        a, b = rng.choice((1e-4, 1e-3, 1e-2)), rng.choice((1e-10, 1e-9, 1e-8))
        costs = dataclasses.replace(COSTS, fused=Affine(a, b))
        ends_s = {}
        for fusion in (PER_TENSOR, HOROVOD, "mgwfbp_paper", "optimal", INTERLEAVED):
            buckets = plan_buckets(trace, costs, fusion)
            names = [name for bucket in buckets for name in bucket.tensors]
            assert sorted(names) == sorted(tensor.name for tensor in trace.tensors)
            for bucket in buckets:
                assert len({is_factor(name) for name in bucket.tensors}) == 1
            ends_s[fusion] = simulated(trace, buckets).end_s  # where they leave in an order
            assert ends_s[fusion] >= trace.compute_s
        for other in (HOROVOD, "mgwfbp_paper", "optimal"):
            assert ends_s[INTERLEAVED] <= ends_s[other] * (1 + 1e-9)
            shorter += ends_s[INTERLEAVED] < ends_s[other] * (1 - 1e-9)
    assert shorter > 40  # of 120: the comparison says something


def test_gradients_between_two_factors_stay_together_and_others_need_not():
    trace = resnet50()
    slow = Affine(0.0, 1e-8)  # the sooner something leaves, the better
    buckets = plan_buckets(trace, dataclasses.replace(COSTS, fused=slow), INTERLEAVED)
    order = [tensor.name for tensor in trace.tensors]
    gradients = [bucket for bucket in buckets if not is_factor(bucket.tensors[0])]
    assert len(gradients) > 1
    for bucket in gradients[:-1]:
        assert is_factor(order[order.index(bucket.tensors[-1]) + 1])


@pytest.mark.parametrize("fusion", [HOROVOD, INTERLEAVED])
def test_a_share_that_hides_nothing_leaves_all_exposed(fusion):
    trace = trace_of(random.Random(3))
    after = Stage(0.5, 0.7)
    buckets = plan_buckets(hiding(trace, 0.0), COSTS, fusion)
    found = step(trace, buckets, after, 0.0)
    assert found.exposed_s == pytest.approx(sum(bucket.seconds for bucket in buckets))
    assert found.seconds == found.compute_s + found.exposed_s + 0.7
    assert found.compute_s == trace.compute_s
    shares = [0.0, 0.3, 0.7, 1.0]
    exposed = [step(trace, buckets, after, share).exposed_s for share in shares]
    assert exposed == sorted(exposed, reverse=True)
    assert exposed[0] > exposed[-1] >= 0


def test_one_rank_has_no_owners():
    model = Model("net", network(random.Random(4)), 0.1, 0.1)
    free = Affine(0.0, 0.0)
    costs = dataclasses.replace(COSTS, ranks=1, fused=free, single=free)
    inversions = sum(float(costs.inversion.seconds(dim)) for dim in model.dims)
    for found in (run(D_KFAC, model, costs), run(MPD_KFAC, model, costs), ours(model, costs)):
        assert found.step.seconds == pytest.approx(0.2 + inversions)
    assert set(found.owners) == {None}


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_a_timeline_has_the_whole_step_and_the_network_carries_one_thing_at_a_time(overlap):
    model = Model("ResNet-50", MODELS["resnet50"].parameters(), 0.132, 0.2115)
    costs = dataclasses.replace(COSTS, ranks=4, overlap=overlap)
    for found in (ours(model, costs), run(SPD_KFAC, model, costs)):
        timeline = timeline_of(found, model, costs)
        assert timeline.end_s == pytest.approx(found.step.seconds, rel=1e-9)
        assert timeline.busy_s("compute") == pytest.approx(found.step.compute_s)
        begins_s = found.step.compute_s + found.step.exposed_s
        inverted = [i for i in timeline.intervals if i.activity.resource.startswith("rank")]
        owned = sum(owner is not None for owner in found.owners)
        assert len(inverted) == owned + 4 * (len(found.owners) - owned)
        ends_s = begins_s + found.step.stage.compute_s
        assert max(i.end_s for i in inverted) == pytest.approx(ends_s)
        carried = [i for i in timeline.intervals if i.activity.resource == NETWORK]
        for one, other in itertools.pairwise(carried):
            assert other.start_s >= one.end_s - 1e-9
        done = {i.activity.name: i.end_s for i in timeline.intervals}
        of_stage = [(begins_s + sent.start_s) for sent in found.step.stage.sent]
        of_passes = carried[: len(found.buckets)]
        for interval, bucket in zip(of_passes, found.buckets, strict=True):
            assert interval.start_s >= max(done[f"compute {n}"] for n in bucket.tensors) - 1e-9
        assert [i.start_s for i in carried[len(of_passes) :]] == pytest.approx(of_stage)


# --- the paper's figures; that simulated seconds follow them says bench/test_figures.py


def test_the_published_overlap_is_what_fits_best():
    errors = [published.overlap_error(published.OVERLAP + 0.01 * shift) for shift in (-1, 0, 1)]
    assert min(errors) == errors[1]


def test_published_totals_add_up():
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
