"""Codecs, feedback and policies: as users write them, and which gradients they compress when."""

import math
import re

import numpy as np
import pytest

from aiacc.compression import codecs, feedback
from aiacc.compression.codecs import (
    BF16,
    NONE,
    Cast,
    MSTopK,
    PowerSGD,
    Quantised,
    RandomK,
    Sparse,
    parse,
)
from aiacc.compression.compressor import allowed_of
from aiacc.compression.feedback import EF21, Momentum, NoFeedback, Residual
from aiacc.compression.policy import Policy

CODECS = {
    "none": Cast("none"),
    "fp16": Cast("fp16"),
    "bf16": Cast("bf16"),
    "int8": Quantised("int8"),
    "int8:block=512": Quantised("int8", block=512),
    "int4:block=128,stochastic=true": Quantised("int4", 128, stochastic=True),
    "fp8": Quantised("fp8"),
    "mstopk": MSTopK(),
    "mstopk:density=0.001": MSTopK(density=0.001),
    "mstopk:density=1e-05,mode=exact": MSTopK(density=1e-5, mode="exact"),
    "topk:density=0.1": Sparse("topk", 0.1),
    "randomk": RandomK(),
    "powersgd": PowerSGD(),
    "powersgd:rank=2": PowerSGD(rank=2),
    "randomk:density=0.02,unbiased=true": RandomK(density=0.02, unbiased=True),
}
FEEDBACK = {
    "none": NoFeedback(),
    "residual": Residual(),
    "residual:beta=0.9": Residual(0.9),
    "momentum": Momentum(),
    "momentum:momentum=0.5,masking=false": Momentum(0.5, masking=False),
    "momentum:nesterov=true": Momentum(nesterov=True),
    "ef21": EF21(),
}


@pytest.mark.parametrize(("module", "texts"), [(codecs, CODECS), (feedback, FEEDBACK)])
def test_texts_there_and_back(module, texts):
    for text, meant in texts.items():
        assert module.parse(text) == meant
        assert str(meant) == text
    assert {name: str(one) for name, one in module.KNOWN.items()} == {n: n for n in module.KNOWN}


def test_a_text_is_canonical():
    assert str(parse(" int8:stochastic=false,block=256 ")) == "int8"
    assert str(parse("int8: stochastic = true, block=512")) == "int8:block=512,stochastic=true"
    assert str(Policy(MSTopK())) == "Policy(mstopk)"
    policy = Policy(MSTopK(0.001), feedback=Momentum(0.5), exclude=("*.bias",), least_elements=1)
    assert str(policy) == (
        "Policy(mstopk:density=0.001, feedback=momentum:momentum=0.5, exclude=('*.bias',), "
        "least_elements=1)"
    )


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        (parse, "int7", "codec 'int7' (expected one of none, fp16, bf16, int8"),
        (parse, "", "codec '' (expected one of none"),
        (parse, "none:block=256", "option 'block' (none takes none)"),
        (parse, "int8:blocks=256", "option 'blocks' (expected block, stochastic)"),
        (parse, "int8:name=fp8", "option 'name' (expected block, stochastic)"),
        (parse, "int8:", "option '' (expected block, stochastic)"),
        (parse, "int8:block=512:stochastic=true", "block=512:stochastic=true (expected a comma"),
        (parse, "int8:block=256,block=512", "option 'block' comes twice"),
        (parse, "int8:block=100", "block 100 of int8 (expected 128, 256, 512 or 1024"),
        (parse, "int8:block=2.5", "block=2.5 (expected a whole number)"),
        (parse, "int8:stochastic=yes", "stochastic=yes (expected true or false)"),
        (parse, "int8:stochastic", "stochastic= (expected true or false)"),
        (parse, "mstopk:density=much", "density=much (expected a number)"),
        (parse, "mstopk:density=0", "density 0.0 of mstopk (expected more than 0"),
        (parse, "mstopk:density=nan", "density nan of mstopk (expected more than 0"),
        (parse, "topk:density=0.11", "at most 0.1; to send more use none, bf16 or int8)"),
        (parse, "topk:mode=exact", "option 'mode' (expected density)"),
        (parse, "mstopk:mode=fast", "mode 'fast' of mstopk (expected one of tracked, exact, ref"),
        (parse, "powersgd:rank=0", "rank 0 of powersgd (expected 1 or more"),
        (Cast, "int8", "codec 'int8' (expected one of none, fp16, bf16 for"),
        (Sparse, "mstopk", "codec 'mstopk' (expected one of topk for"),
        (feedback.parse, "ef22", "feedback 'ef22' (expected one of none, residual, momentum, ef21"),
        (feedback.parse, "residual:beta=0", "beta 0.0 of residual (expected more than 0 and at"),
        (feedback.parse, "residual:beta=1.5", "at most 1; to forget what is lost use none)"),
        (feedback.parse, "momentum:momentum=1", "momentum 1.0 (expected 0 or more and less than 1"),
        (feedback.parse, "momentum:momentum=-1", "momentum -1.0 (expected 0 or more and less than"),
        (allowed_of, "auto:", "compression='auto:': codec ''"),
        (allowed_of, "auto:int9", "compression='auto:int9': codec 'int9'"),
        (allowed_of, "auto:int9", "name codecs as in 'auto:bf16+int8'"),
        (allowed_of, "auto:int8,bf16", "compression='auto:int8,bf16': codec 'int8,bf16'"),
        (allowed_of, "auto:int8:bits=3", "'bits' (expected block"),
        (allowed_of, "auto:powersgd", "compression='auto:powersgd' (expected codecs that the core"),
        (allowed_of, "auto:int8+int8:block=512", "each codec once"),
        (allowed_of, "auto:none", "besides none"),
    ],
)
def test_bad_texts_are_named(read, text, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        read(text)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"dense": Quantised("int8")}, r"dense Quantised.* of a policy .*bf16"),
        ({"exclude": "bias"}, r"exclude 'bias' \(expected a sequence .*\('bias',\)"),
        ({"least_elements": 0}, r"least_elements 0 \(expected 1 or more\)"),
        ({"stages": 0}, r"stages 0 \(expected 1 or more\)"),
        ({"first_density": 0.25}, r"first_density 0.25 \(expected more .* at most 0.1"),
        ({"first_density": 0.002}, r"first_density 0.002 with mstopk \(expected its"),
        (
            {"codec": Quantised("int8"), "feedback": Momentum()},
            r"feedback momentum with int8 \(expected masking=False",
        ),
        (
            {"codec": RandomK(unbiased=True), "feedback": Residual()},
            r"residual with randomk:unbiased=true \(expected none",
        ),
    ],
)
def test_arguments_that_no_policy_takes_are_named(arguments, error):
    of_type = " of a policy" in error or "sequence" in error
    with pytest.raises(TypeError if of_type else ValueError, match=error):
        Policy(**{"codec": MSTopK(), **arguments})


def test_numbers_of_numpy_are_numbers():
    for kind in (np.float16, np.float32, np.float64):
        assert repr(Residual(kind(0.5))) == repr(Residual(0.5))
        assert repr(Momentum(kind(0.5))) == repr(Momentum(0.5))
        assert type(MSTopK(kind(0.0625)).density) is float
        assert MSTopK(kind(0.0625)) == MSTopK(0.0625)
    # In float32 this would be another number, and not what the core has.
    single = np.float32(0.01)
    assert MSTopK(single).kept(1 << 30) == math.ceil(float(single) * (1 << 30))
    assert str(Quantised("int8", np.int64(512))) == "int8:block=512"
    policy = Policy(
        MSTopK(single),
        least_elements=np.int64(500),
        stages=np.int32(2),
        first_density=np.float32(0.0625),
    )
    plain = Policy(MSTopK(float(single)), least_elements=500, stages=2, first_density=0.0625)
    assert repr(policy) == repr(plain)


# --- what an argument ``compression`` may be


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("auto", (BF16, Quantised("int8"))),  # what loses more is for users to name
        ("auto:bf16+int8", (BF16, Quantised("int8"))),
        (
            "auto:int8:block=512+mstopk:density=0.001,mode=exact",
            (Quantised("int8", block=512), MSTopK(density=0.001, mode="exact")),
        ),
        ("auto:none+bf16", (BF16,)),
        ("int8", None),
        (BF16, None),
        (None, None),
    ],
)
def test_what_a_chooser_may_take(text, allowed):
    assert allowed_of(text) == allowed


# --- which gradients a policy compresses, and how much when

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


def test_patterns_that_match_nothing_and_policies_that_compress_nothing_are_said():
    policy = Policy(MSTopK(), include=("block.*", "heat*"), exclude=("*.bias", "*.norm.*", "heat*"))
    assert policy.unmatched(["head.weight", "block.0.bias"]) == ["heat*", "*.norm.*"]
    assert Policy(MSTopK()).unmatched(["any"]) == []
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


def test_what_stays_dense_may_have_16_bits_if_it_is_float32():
    policy = Policy(MSTopK(), dense=BF16, dense_steps=1)
    assert policy.codec_of("bias", (128,), "float32", 5) == BF16
    assert policy.codec_of("weight", SHAPE, "float32", 0) == BF16
    assert policy.codec_of("weight", SHAPE, "float32", 1) == MSTopK()
    assert policy.codec_of("weight", SHAPE, "float64", 1) == NONE


def test_density_falls_in_geometric_steps_and_nothing_else_does():
    policy = Policy(MSTopK(density=1e-3), dense_steps=10, stages=4, stage_steps=5)
    codecs = [policy.codec_of("w", SHAPE, "float32", step) for step in range(40)]
    assert codecs[:10] == [NONE] * 10
    densities = [codec.density for codec in codecs[10:]]
    stages = [0.1, 0.1 * 10**-0.5, 0.01, 0.01 * 10**-0.5]
    assert densities[:20] == pytest.approx([density for density in stages for _ in range(5)])
    assert codecs[30:] == [MSTopK(density=1e-3)] * 10  # exactly: it goes by equality
    policy = Policy(MSTopK(density=1e-3, mode="exact"), stage_steps=5)
    assert policy.codec_at(0) == MSTopK(density=0.1, mode="exact")
    assert Policy(Quantised("int8"), stage_steps=5).codec_at(0) == Quantised("int8")
    assert Policy(Sparse("topk", 0.05)).codec_at(0) == Sparse("topk", 0.05)
    as_the_first = Policy(Sparse("topk", 0.05), first_density=0.05, stage_steps=5)
    assert as_the_first.codec_at(0) == Sparse("topk", 0.05)
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
