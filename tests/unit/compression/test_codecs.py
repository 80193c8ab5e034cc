"""Names of codecs, and the bytes they put on the wire."""

import math
import re

import numpy as np
import pytest

from aiacc.compression.codecs import (
    KNOWN,
    Cast,
    MSTopK,
    PowerSGD,
    Quantised,
    RandomK,
    Sparse,
    parse,
)

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
    "randomk:density=0.02,unbiased=true": RandomK(density=0.02, unbiased=True),
}


@pytest.mark.parametrize("text", CODECS)
def test_texts_there_and_back(text):
    assert parse(text) == CODECS[text]
    assert str(CODECS[text]) == text


def test_a_text_is_canonical():
    assert str(parse(" int8:stochastic=false,block=256 ")) == "int8"
    assert str(parse("int8:stochastic=true,block=512")) == "int8:block=512,stochastic=true"
    assert str(parse("int8: block = 512, stochastic=true")) == "int8:block=512,stochastic=true"


def test_every_codec_has_its_name():
    assert {name: str(codec) for name, codec in KNOWN.items()} == {name: name for name in KNOWN}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("int7", "codec 'int7' (expected one of none, fp16, bf16, int8"),
        ("", "codec '' (expected one of none"),
        ("none:block=256", "option 'block' (none takes none)"),
        ("int8:blocks=256", "option 'blocks' (expected block, stochastic)"),
        ("int8:name=fp8", "option 'name' (expected block, stochastic)"),
        ("int8:", "option '' (expected block, stochastic)"),
        ("int8:block=512:stochastic=true", "block=512:stochastic=true (expected a comma between"),
        ("int8:block=256,block=512", "option 'block' comes twice"),
        ("int8:block=100", "block 100 of int8 (expected 128, 256, 512 or 1024"),
        ("int8:block=2048", "block 2048 of int8 (expected 128"),
        ("int8:block=2.5", "block=2.5 (expected a whole number)"),
        ("int8:stochastic=yes", "stochastic=yes (expected true or false)"),
        ("int8:stochastic", "stochastic= (expected true or false)"),
        ("mstopk:density=much", "density=much (expected a number)"),
        ("mstopk:density=0", "density 0.0 of mstopk (expected more than 0"),
        ("mstopk:density=nan", "density nan of mstopk (expected more than 0"),
        ("topk:density=0.11", "at most 0.1; to send more use none, bf16 or int8)"),
        ("topk:mode=exact", "option 'mode' (expected density)"),
        ("mstopk:mode=fast", "mode 'fast' of mstopk (expected one of tracked, exact, reference)"),
    ],
)
def test_bad_texts_are_named(text, error):
    with pytest.raises(ValueError, match=re.escape(error)):
        parse(text)


def test_a_class_takes_its_own_names_only():
    with pytest.raises(ValueError, match=r"codec 'int8' \(expected one of none, fp16, bf16 for"):
        Cast("int8")
    with pytest.raises(ValueError, match=r"codec 'mstopk' \(expected one of topk for"):
        Sparse("mstopk")


@pytest.mark.parametrize(
    ("text", "elements", "nbytes"),
    [
        ("none", 1000, 4000),
        ("fp16", 1001, 2002),
        ("bf16", 0, 0),
        ("int8", 1024, 1024 + 4 * 4),
        ("int8", 1025, 1025 + 4 * 5),
        ("fp8:block=1024", 1025, 1025 + 4 * 2),
        ("int4", 1025, 513 + 4 * 5),
        ("int4:block=128", 0, 0),
        ("mstopk", 1000, 8 * 10),
        ("mstopk", 1001, 8 * 11),
        ("topk:density=0.001", 1, 8),
        ("randomk", 0, 0),
        ("randomk", 1001, 4 * 11),
    ],
)
def test_bytes_on_the_wire(text, elements, nbytes):
    assert parse(text).wire_bytes(elements) == nbytes


def test_elements_that_no_codec_takes():
    for text in CODECS:
        with pytest.raises(ValueError, match=r"-1 elements \(expected 0 or more"):
            parse(text).wire_bytes(-1)
    assert parse("topk").kept(2**31 - 1) == 21474837


@pytest.mark.parametrize(
    ("shape", "takes"),
    [
        ((100, 100), True),
        ((64, 8, 3, 3), True),  # 64 x 72
        ((16, 16), False),
        ((4, 100_000), False),
        ((10_000,), False),
        ((), False),
        ((0, 1000), False),
    ],
)
def test_powersgd_takes_what_it_halves(shape, takes):
    assert PowerSGD().takes(shape) == takes
    assert parse("int8").takes(shape)


def test_powersgd_has_a_rank():
    assert parse("powersgd:rank=2") == PowerSGD(rank=2)
    assert parse("powersgd:rank=2").wire_bytes(10_000) == 4 * 2 * 2 * 100
    assert parse("powersgd").wire_bytes(4) == 4 * 4, "never more than all"
    with pytest.raises(ValueError, match=r"rank 0 of powersgd \(expected 1 or more"):
        parse("powersgd:rank=0")


def test_numbers_of_numpy_are_numbers():
    for kind in (np.float64, np.float32):
        codec = MSTopK(kind(0.0625))
        assert codec == MSTopK(0.0625)
        assert type(codec.density) is float
    # In float32 this would be another number, and not what the core has.
    assert MSTopK(np.float32(0.01)).kept(1 << 30) == math.ceil(float(np.float32(0.01)) * (1 << 30))
    assert str(Quantised("int8", np.int64(512))) == "int8:block=512"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MSTopK("0.01"), r"density '0\.01' of mstopk .*float, such as 0\.01"),
        (lambda: MSTopK(0.01, mode=None), r"mode None of mstopk .*str, such as 'tracked'"),
        (lambda: PowerSGD(2.5), r"rank 2\.5 of powersgd .*int, such as 4"),
        (lambda: Quantised("int8", 256.0), r"block 256\.0 of int8"),
        (lambda: Quantised("int8", stochastic=1), r"stochastic 1 of int8 .*bool"),
    ],
)
def test_options_of_other_types_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()
