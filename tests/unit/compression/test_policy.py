"""Which gradients are compressed, and how much when."""

import pytest

from aiacc.compression.codecs import BF16, NONE, MSTopK, PowerSGD, Quantised, RandomK, Sparse
from aiacc.compression.feedback import Momentum, NoFeedback, Residual
from aiacc.compression.policy import Policy

SHAPE = (128, 128)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "compressed"),
    [
        ("layer.weight", (128, 128), "float32", True),
        ("layer.weight", (128, 127), "float32", False),
        ("conv.weight", (64, 64, 3, 3), "float32", True),
        ("norm.weight", (1 << 20,), "float32", False),
        ("scale", (), "float32", False),
        ("empty", (0, 1 << 20), "float32", False),
        ("layer.weight", (128, 128), "float16", False),
        ("layer.weight", (128, 128), "int64", False),
    ],
)
def test_small_and_flat_gradients_stay_dense(name, shape, dtype, compressed):
    policy = Policy(MSTopK())
    assert policy.compresses(name, shape, dtype) == compressed
    assert policy.codec_of(name, shape, dtype, 0) == (MSTopK() if compressed else NONE)


@pytest.mark.parametrize(
    ("include", "exclude", "names"),
    [
        (("*",), (), {"head.weight", "block.0.weight", "block.1.weight"}),
        (("block.*",), (), {"block.0.weight", "block.1.weight"}),
        (("*",), ("head*", "*.1.*"), {"block.0.weight"}),
        (("head*", "block.[01]*"), ("block.*",), {"head.weight"}),
        ((), (), set()),
    ],
)
def test_patterns(include, exclude, names):
    policy = Policy(Quantised("int8"), include=include, exclude=exclude)
    every = ("head.weight", "block.0.weight", "block.1.weight")
    assert {name for name in every if policy.compresses(name, SHAPE, "float32")} == names


def test_patterns_that_match_nothing_are_known():
    policy = Policy(MSTopK(), include=("block.*", "heat*"), exclude=("*.bias", "*.norm.*", "heat*"))
    assert policy.unmatched(["head.weight", "block.0.bias"]) == ["heat*", "*.norm.*"]
    assert Policy(MSTopK()).unmatched(["any"]) == []


def test_what_stays_dense_may_have_16_bits_if_it_is_float32():
    policy = Policy(MSTopK(), dense=BF16, dense_steps=1)
    assert policy.codec_of("bias", (128,), "float32", 5) == BF16
    assert policy.codec_of("weight", SHAPE, "float32", 0) == BF16
    assert policy.codec_of("weight", SHAPE, "float32", 1) == MSTopK()
    assert policy.codec_of("weight", SHAPE, "float64", 1) == NONE


def test_density_falls_in_geometric_steps():
    policy = Policy(MSTopK(density=1e-3), dense_steps=10, stages=4, stage_steps=5)
    codecs = [policy.codec_of("w", SHAPE, "float32", step) for step in range(40)]
    assert codecs[:10] == [NONE] * 10
    densities = [codec.density for codec in codecs[10:]]
    stages = [0.1, 0.1 * 10**-0.5, 0.01, 0.01 * 10**-0.5]
    assert densities[:20] == pytest.approx([density for density in stages for _ in range(5)])
    assert codecs[30:] == [MSTopK(density=1e-3)] * 10  # exactly: it goes by equality


def test_the_schedule_keeps_the_other_options():
    policy = Policy(MSTopK(density=1e-3, mode="exact"), stage_steps=5)
    assert policy.codec_at(0) == MSTopK(density=0.1, mode="exact")


def test_codecs_without_a_schedule():
    assert Policy(Quantised("int8"), stage_steps=5).codec_at(0) == Quantised("int8")
    assert Policy(Sparse("topk", 0.05)).codec_at(0) == Sparse("topk", 0.05)
    as_the_first = Policy(Sparse("topk", 0.05), first_density=0.05, stage_steps=5)
    assert as_the_first.codec_at(0) == Sparse("topk", 0.05)


def test_steps_count_from_0():
    with pytest.raises(ValueError, match="step -1"):
        Policy(MSTopK()).codec_at(-1)


@pytest.mark.parametrize(
    ("policy", "keeps"),
    [
        (Policy(Quantised("int8")), NoFeedback()),
        (Policy(Quantised("int4")), Residual()),
        (Policy(MSTopK()), Residual()),
        (Policy(PowerSGD()), Residual()),
        (Policy(RandomK()), Residual()),
        (Policy(RandomK(unbiased=True)), NoFeedback()),  # what it loses grows when it is sent
        (Policy(MSTopK(), feedback=NoFeedback()), NoFeedback()),
        (Policy(Quantised("int8"), feedback=Momentum(masking=False)), Momentum(masking=False)),
    ],
)
def test_what_loses_much_is_kept_unless_a_user_says_otherwise(policy, keeps):
    assert policy.keeps == keeps


def test_it_says_why_it_compresses_nothing():
    small, large = ("w", (10, 10), "float32"), ("w", SHAPE, "float32")
    for policy, gradients, why in (
        (Policy(MSTopK()), [small], "compresses none of 1 gradients: 1 of fewer than 16384 elem"),
        (Policy(MSTopK()), [("w", SHAPE, "float64"), ("b", (9,), "float32")], "1 of float64, 1 of"),
        (Policy(MSTopK(), exclude=("*",)), [large], "1 that include and exclude leave out"),
        (Policy(PowerSGD(rank=64)), [large], "1 that powersgd:rank=64 would not make shorter"),
    ):
        assert why in policy.idle(gradients)
    assert Policy(NONE).idle([small]) == Policy(MSTopK()).idle([]) == ""
    assert Policy(MSTopK()).idle([small, large]) == ""
