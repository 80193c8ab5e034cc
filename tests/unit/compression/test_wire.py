"""Codecs as the core numbers them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aiacc.compression.codecs import (
    KNOWN,
    MOST_DENSITY,
    Cast,
    MSTopK,
    PowerSGD,
    Quantised,
    RandomK,
    Sparse,
)
from aiacc.compression.wire import is_coded, wire_of

ROOT = Path(__file__).resolve().parents[3]
FORMATS = ROOT.joinpath("csrc/base/dtype.h").read_text().split("enum class WireFormat")[1]
CODING = ROOT.joinpath("csrc/engines/coding.h").read_text()


def _format(name):
    """A number of enum WireFormat."""
    return int(re.search(rf"\b{name} = (\d+),", FORMATS)[1])


def _flag(name):
    """A constant of struct Coding."""
    return 1 << int(re.search(rf"\b{name} = 1U << (\d+);", CODING)[1])


@pytest.mark.parametrize(
    ("codec", "name"),
    [("none", "kTensor"), ("fp16", "kFloat16"), ("bf16", "kBFloat16")],
)
def test_casts_have_no_numbers(codec, name):
    assert wire_of(Cast(codec)) == _format(name)
    assert not is_coded(Cast(codec))


@pytest.mark.parametrize(
    ("codec", "name"),
    [("int8", "kInt8Blocks"), ("int4", "kInt4Blocks"), ("fp8", "kFloat8Blocks")],
)
@pytest.mark.parametrize("block", [128, 256, 512, 1024])
def test_blocks(codec, name, block):
    nearest, chance = Quantised(codec, block), Quantised(codec, block, stochastic=True)
    assert divmod(wire_of(nearest), 256) == (block, _format(name))
    assert divmod(wire_of(chance), 256) == (block + _flag("kStochastic"), _format(name))
    assert is_coded(nearest)


def test_the_largest():
    largest = _format("kLargest")
    for mode, flag in {
        "tracked": 0,
        "exact": _flag("kExact"),
        "reference": _flag("kReference"),
    }.items():
        wire = wire_of(MSTopK(density=0.001, mode=mode))
        assert divmod(wire, 256) == (1000 + flag, largest)
    assert wire_of(Sparse("topk", 0.001)) == wire_of(MSTopK(density=0.001, mode="exact"))
    assert is_coded(MSTopK())


@pytest.mark.parametrize(
    ("density", "millionths"),
    [(1e-9, 1), (1e-6, 1), (1.1e-6, 2), (0.0123456, 12346), (0.1, 100000)],
)
def test_densities_are_rounded_up_to_millionths(density, millionths):
    assert wire_of(MSTopK(density=density)) // 256 == millionths


def test_densities_of_few_digits_are_sent_as_they_are_written():
    for millionths in range(1, 100001):
        assert wire_of(MSTopK(density=millionths / 1_000_000)) // 256 == millionths


def test_no_density_is_more_than_the_core_takes():
    (most,) = re.findall(r"kMostMillionths = ([\d']+);", CODING)
    assert wire_of(MSTopK(density=MOST_DENSITY)) // 256 == int(most.replace("'", ""))


def test_random_ones():
    for unbiased, flag in {False: 0, True: _flag("kUnbiased")}.items():
        wire = wire_of(RandomK(density=0.05, unbiased=unbiased))
        assert divmod(wire, 256) == (50000 + flag, _format("kRandom"))
        assert wire < 2**31
    assert is_coded(RandomK())


def test_every_codec_but_powersgd_has_a_number_below_2_to_the_31():
    wires = {name: wire_of(codec) for name, codec in KNOWN.items() if name != "powersgd"}
    assert len(set(wires.values())) == len(wires)
    assert max(wires.values()) < 2**31
    with pytest.raises(ValueError, match=r"powersgd of an operation .*DistributedOptimizer"):
        wire_of(PowerSGD())
