"""Which gradients are compressed, and how much when."""

import numpy as np
import pytest

from aiacc.compression.codecs import BF16, NONE, MSTopK, PowerSGD, Quantised, Sparse
from aiacc.compression.feedback import Momentum
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


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"least_elements": 0}, r"least_elements 0 \(expected 1 or more\)"),
        ({"dense_steps": -1}, r"dense_steps -1 \(expected 0 or more\)"),
        ({"stages": 0}, r"stages 0 \(expected 1 or more\)"),
        ({"stage_steps": -1}, r"stage_steps -1 \(expected 0 or more\)"),
        ({"first_density": 0.25}, r"first_density 0.25 \(expected more than 0 and at most 0.1"),
        ({"first_density": 0.002}, r"first_density 0.002 with mstopk \(expected its .* 0.01, or"),
    ],
)
def test_bad_fields_are_named(fields, error):
    with pytest.raises(ValueError, match=error):
        Policy(MSTopK(), **fields)


def test_steps_count_from_0():
    with pytest.raises(ValueError, match="step -1"):
        Policy(MSTopK()).codec_at(-1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"codec": "int8"}, r"codec 'int8' of a policy .*codecs\.parse"),
        ({"dense": "bf16"}, r"dense 'bf16' of a policy"),
        ({"dense": Quantised("int8")}, r"dense Quantised.* of a policy .*bf16"),
        ({"feedback": "ef21"}, r"feedback 'ef21' of a policy .*Residual"),
        ({"dense_steps": 1.5}, r"dense_steps 1\.5 of a policy"),
        ({"stages": None}, r"stages None of a policy"),
        ({"dense_steps": True}, r"dense_steps True of a policy \(expected a whole number, such as"),
        ({"least_elements": 1.5}, r"least_elements 1\.5 of a policy \(expected a whole number"),
        ({"first_density": "0.1"}, r"first_density '0\.1' of a policy \(expected a number, such"),
        ({"exclude": "bias"}, r"exclude 'bias' \(expected a sequence of patterns, such as"),
        ({"include": [1]}, r"include \[1\] \(expected a sequence of patterns, such as"),
        ({"include": None}, r"include None \(expected a sequence of patterns"),
    ],
)
def test_arguments_of_other_types_are_named(arguments, text):
    with pytest.raises(TypeError, match=text):
        Policy(**{"codec": MSTopK(), **arguments})


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


def test_momentum_with_masking_is_not_for_codecs_that_send_everything():
    with pytest.raises(ValueError, match=r"feedback momentum with int8 \(expected masking=False"):
        Policy(Quantised("int8"), feedback=Momentum())
    Policy(Quantised("int8"), feedback=Momentum(masking=False))


def test_numbers_of_numpy_are_numbers():
    numbers = {"least_elements": 500, "stages": 2, "first_density": 0.0625}
    plain = Policy(MSTopK(), **numbers)
    of_numpy = Policy(
        MSTopK(np.float32(0.01)),
        least_elements=np.int64(500),
        stages=np.int32(2),
        first_density=np.float32(0.0625),
    )
    assert repr(of_numpy).replace(repr(float(np.float32(0.01))), "0.01") == repr(plain)


def test_its_text_has_what_differs_from_the_defaults():
    assert str(Policy(MSTopK())) == "Policy(mstopk)"
    policy = Policy(MSTopK(0.001), feedback=Momentum(0.5), exclude=("*.bias",), least_elements=1)
    assert str(policy) == (
        "Policy(mstopk:density=0.001, feedback=momentum:momentum=0.5, exclude=('*.bias',), "
        "least_elements=1)"
    )
