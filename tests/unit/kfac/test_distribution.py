import random

import pytest

from aiacc.kfac.costs import Polynomial, packed_elements
from aiacc.kfac.distribution import distribute, of_owners
from aiacc.kfac.placement import by_dimension
from aiacc.kfac.stage import StageCosts
from aiacc.planning.cost import Affine
from aiacc.planning.models import MODELS
from aiacc.planning.models.kronecker import Layer, layers_of

COSTS = StageCosts(Polynomial(1e-4, 1e-9, 1e-13), Affine(1e-3, 1e-9))


def random_layers(rng):
    return [
        Layer(f"layer{i}", rng.randint(1, 3000), rng.randint(1, 3000), 1, (f"layer{i}.weight",))
        for i in range(rng.randint(1, 12))
    ]


def every_kind(ranks):
    shares = [f"kaisa:{n / ranks:.3f}" for n in range(1, ranks + 1) if ranks % n == 0]
    return ["replicate", "mpd", "spd", "dp", *shares]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])
def test_every_rank_gets_every_gradient_once_and_whoever_computes_has_what_that_needs(ranks):
    rng = random.Random(ranks)
    for kind in every_kind(ranks):
        layers = random_layers(rng)
        found = distribute(kind, layers, ranks, COSTS)
        assert [layer.name for layer in found.layers] == [layer.name for layer in layers]
        for layer, work in zip(layers, found.layers, strict=True):
            assert (work.a.dim, work.g.dim) == (layer.a_dim, layer.g_dim)
            got = [rank for _, receivers in work.sends for rank in receivers]
            assert sorted([*work.preconditioned_by, *got]) == list(range(ranks))
            assert {sender for sender, _ in work.sends} <= set(work.preconditioned_by)
            for one in (work.a, work.g):
                assert {*one.inverted_by, *one.inverse_to} == set(work.preconditioned_by)
                assert not set(one.inverted_by) & set(one.inverse_to)
                # Of its own samples, or the mean that it gets; nobody gets more than it needs.
                assert one.reduced_to == (() if kind == "dp" else one.inverted_by)


def test_the_kinds_differ_in_who_inverts_and_spread_the_work():
    layers = random_layers(random.Random(1))
    everybody = tuple(range(4))
    for layer in distribute("replicate", layers, 4, COSTS).layers:
        assert layer.a.inverted_by == layer.g.inverted_by == everybody
        assert layer.a.owner is None
    for layer in distribute("mpd", layers, 4, COSTS).layers:
        assert layer.a.owner in everybody
        assert layer.preconditioned_by == everybody
    for layer in distribute("dp", layers, 4, COSTS).layers:
        assert layer.a.owner == layer.g.owner == layer.preconditioned_by[0]
    for layer in distribute("kaisa:0.5", layers, 4, COSTS).layers:
        assert layer.preconditioned_by in ((0, 2), (1, 3))
        assert [sender for sender, _ in layer.sends] == [*layer.preconditioned_by]
        assert {0, 1} in [{sender, *others} for sender, others in layer.sends]
    layers = [Layer("large", 4000, 4000, 1, ("l",)), Layer("small", 8, 8, 1, ("s",))]
    fast = StageCosts(COSTS.inversion, Affine(1e-3, 1e-11))
    large, small = distribute("spd", layers, 2, fast).layers
    assert {large.a.owner, large.g.owner} == {0, 1}
    assert (small.a.owner, small.g.owner) == (None, None)
    """Owners of the same number of equal layers each."""
    layers = [Layer(f"layer{i}", 100, 100, 1, (f"w{i}",)) for i in range(8)]
    for kind, each in (("mpd", 4), ("dp", 4), ("kaisa:0.5", 4), ("kaisa:0.25", 4)):
        found = distribute(kind, layers, 4, COSTS)
        assert [len(found.inversions()[rank]) for rank in range(4)] == [each] * 4, kind
    assert distribute("replicate", layers[:1], 2, COSTS).inversions() == {
        rank: ["layer0 A", "layer0 G"] for rank in range(2)
    }


def test_elements_by_the_formulas_of_each_kind():
    """W of the layers, F packed factors, tau how many steps they are used for."""
    layers = layers_of(MODELS["resnet50"].parameters())
    w = sum(layer.a_dim * layer.g_dim for layer in layers)
    f = 62_348_671 + 14_618_356
    dims = [dim for layer in layers for dim in (layer.a_dim, layer.g_dim)]

    def elements(kind, *every):
        return distribute(kind, layers, 64, COSTS).elements(*every)

    assert elements("replicate") == 2 * w + 2 * f
    assert elements("replicate", 10, 100) == pytest.approx(2 * w + 2 * f / 10)
    assert elements("mpd", 10, 100) == pytest.approx(2 * w + f / 10 + f / 100)
    assert elements("kaisa:1", 10, 100) == elements("mpd", 10, 100)
    assert elements(f"kaisa:{1 / 64}", 10, 100) == pytest.approx(2 * w + f / 10 + w)
    assert elements("dp") == 3 * w
    owned = by_dimension(dims, 64)
    ct = sum(packed_elements(d) for d, o in zip(dims, owned, strict=True) if o is not None)
    found = of_owners("spd", layers, 64, owned).elements(10, 100)
    assert found == pytest.approx(2 * w + (2 * f - ct) / 10 + ct / 100)


@pytest.mark.parametrize(
    ("kind", "ranks", "text"),
    [
        ("all", 4, "distribution 'all' .expected replicate, mpd, spd, dp, or kaisa:"),
        ("kaisa", 4, "expected replicate"),
        ("kaisa:half", 4, "'half' is no number"),
        ("kaisa:0.3", 4, "of 4 ranks the share may be 0.25, 0.5, 1"),
        ("kaisa:0.75", 4, "of 4 ranks the share may be 0.25, 0.5, 1"),
        ("kaisa:0", 4, "may be 0.25, 0.5, 1"),
        ("kaisa:2", 4, "may be 0.25, 0.5, 1"),
        ("dp", 0, "0 ranks .expected >= 1"),
    ],
)
def test_bad_kinds_are_named(kind, ranks, text):
    with pytest.raises(ValueError, match=text):
        distribute(kind, random_layers(random.Random(3)), ranks, COSTS)
