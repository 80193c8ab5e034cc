"""Codecs on the wire: bytes, what they are for, and their numbers in the core."""

import re

import pytest

from aiacc.compression.codecs import KNOWN, MOST_DENSITY, MSTopK, PowerSGD, parse
from aiacc.compression.wire import is_coded, wire_of
from tests.support.programs import ROOT

FORMATS = ROOT.joinpath("csrc/base/dtype.h").read_text().split("enum class WireFormat")[1]
CODING = ROOT.joinpath("csrc/engines/coding.h").read_text()


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
        ("powersgd:rank=2", 10_000, 4 * 2 * 2 * 100),
        ("powersgd", 4, 4 * 4),  # never more than all
    ],
)
def test_bytes_on_the_wire(text, elements, nbytes):
    assert parse(text).wire_bytes(elements) == nbytes


def test_what_no_codec_takes_and_what_has_no_number():
    for codec in KNOWN.values():
        with pytest.raises(ValueError, match=r"-1 elements \(expected 0 or more"):
            codec.wire_bytes(-1)
    assert parse("topk").kept(2**31 - 1) == 21474837
    wires = {name: wire_of(codec) for name, codec in KNOWN.items() if name != "powersgd"}
    assert len(set(wires.values())) == len(wires)
    with pytest.raises(ValueError, match=r"powersgd of an operation .*DistributedOptimizer"):
        wire_of(PowerSGD())


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


def _format(name):
    """A number of enum WireFormat."""
    return int(re.search(rf"\b{name} = (\d+),", FORMATS)[1])


def _flag(name):
    """A constant of struct Coding; "": none."""
    return 1 << int(re.search(rf"\b{name} = 1U << (\d+);", CODING)[1]) if name else 0


BLOCKS = {"int8": "kInt8Blocks", "int4": "kInt4Blocks", "fp8": "kFloat8Blocks"}


@pytest.mark.parametrize(
    ("text", "name", "number", "flag"),
    [
        ("none", "kTensor", 0, ""),
        ("fp16", "kFloat16", 0, ""),
        ("bf16", "kBFloat16", 0, ""),
        *(
            (f"{codec}:block={block}{chance}", name, block, "kStochastic" if chance else "")
            for codec, name in BLOCKS.items()
            for block in (128, 256, 512, 1024)
            for chance in ("", ",stochastic=true")
        ),
        ("mstopk:density=0.001", "kLargest", 1000, ""),
        ("mstopk:density=0.001,mode=exact", "kLargest", 1000, "kExact"),
        ("mstopk:density=0.001,mode=reference", "kLargest", 1000, "kReference"),
        ("topk:density=0.001", "kLargest", 1000, "kExact"),
        ("randomk:density=0.05", "kRandom", 50000, ""),
        ("randomk:density=0.05,unbiased=true", "kRandom", 50000, "kUnbiased"),
        # Densities are rounded up to millionths.
        ("mstopk:density=1e-9", "kLargest", 1, ""),
        ("mstopk:density=1.1e-6", "kLargest", 2, ""),
    ],
)
def test_numbers_are_those_of_the_core(text, name, number, flag):
    codec = parse(text)
    assert divmod(wire_of(codec), 256) == (number + _flag(flag), _format(name))
    assert wire_of(codec) < 2**31
    assert is_coded(codec) == (number > 0)


def test_densities_are_sent_as_they_are_written_and_no_more_than_the_core_takes():
    for millionths in range(1, 100001):
        assert wire_of(MSTopK(density=millionths / 1_000_000)) // 256 == millionths
    (most,) = re.findall(r"kMostMillionths = ([\d']+);", CODING)
    assert wire_of(MSTopK(density=MOST_DENSITY)) // 256 == int(most.replace("'", ""))
