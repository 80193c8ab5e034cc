"""Codecs by name: what float32 elements become on the wire, and how many bytes that is. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from aiacc.compression import spelling

#: Bytes of a float32 element, of a scale of a block, and of a value with its index.
FLOAT32, SCALE, PAIR = 4, 4, 8
#: Sparse codecs send no more than this part of the elements. Near the mean of the absolute values
#: MSTopK finds no good threshold; and pairs twice as long as elements then save little.
MOST_DENSITY = 0.1
MODES = ("tracked", "exact", "reference")
_BITS = {"none": 32, "fp16": 16, "bf16": 16, "int8": 8, "int4": 4, "fp8": 8}


@dataclass(frozen=True)
class Codec:
    """One of the classes below; as text as `parse` reads it."""

    _NAMES: ClassVar[tuple[str, ...]] = ()

    name: str

    def __post_init__(self) -> None:
        spelling.make_plain(self)
        if self.name not in self._NAMES:
            raise ValueError(
                f"codec {self.name!r} (expected one of {', '.join(self._NAMES)} for a "
                f"{type(self).__name__}; parse() takes all names)"
            )
        for option in dataclasses.fields(self)[1:]:
            value, kind = getattr(self, option.name), type(option.default)
            takes = (float, int) if kind is float else kind
            if not isinstance(value, takes) or isinstance(value, bool) != (kind is bool):
                raise ValueError(
                    f"{option.name} {value!r} of {self.name} (expected {kind.__name__}, such as "
                    f"{option.default!r})"
                )

    def wire_bytes(self, elements: int) -> int:
        """What so many float32 elements are encoded to; ValueError for a negative number."""
        raise NotImplementedError

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether it makes a float32 tensor of this shape shorter."""
        del shape
        return True

    def __str__(self) -> str:
        return spelling.spell(self, KNOWN)


@dataclass(frozen=True)
class Cast(Codec):
    """Elements one by one: ``none`` (float32 as they are), ``fp16`` or ``bf16``."""

    _NAMES: ClassVar[tuple[str, ...]] = ("none", "fp16", "bf16")

    def wire_bytes(self, elements: int) -> int:
        """See Codec."""
        return _checked(elements) * _BITS[self.name] // 8


@dataclass(frozen=True)
class Quantised(Codec):
    """``int8``, ``int4`` or ``fp8`` (e4m3) in blocks that have a float32 scale each.

    The scale is that of the largest absolute value. Ranks exchange shards, sum them in float32,
    encode the sums and gather these.
    """

    _NAMES: ClassVar[tuple[str, ...]] = ("int8", "int4", "fp8")

    #: Elements that share a scale: a power of two from 128 to 1024.
    block: int = 256
    #: Whether rounding is random, and right in the mean, instead of to the nearest.
    stochastic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block not in (128, 256, 512, 1024):
            raise ValueError(
                f"block {self.block} of {self.name} (expected 128, 256, 512 or 1024 elements; "
                "smaller blocks are more precise and add more scales)"
            )

    def wire_bytes(self, elements: int) -> int:
        """See Codec. The last block may be a part of one; an odd number of 4 bits is padded."""
        numbers = math.ceil(_checked(elements) * _BITS[self.name] / 8)
        return numbers + SCALE * math.ceil(elements / self.block)


@dataclass(frozen=True)
class Sparse(Codec):
    """Some elements with their indices: ``topk``, the largest."""

    _NAMES: ClassVar[tuple[str, ...]] = ("topk",)

    #: Part of the elements that is sent.
    density: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.density <= MOST_DENSITY:
            raise ValueError(
                f"density {self.density} of {self.name} (expected more than 0 and at most "
                f"{MOST_DENSITY}; to send more use none, bf16 or int8)"
            )

    def kept(self, elements: int) -> int:
        """How many of so many elements are sent: the density times them, rounded up.

        Indices have 32 bits: the core cuts what has more than 2^31 elements.
        """
        return math.ceil(self.density * _checked(elements))

    def wire_bytes(self, elements: int) -> int:
        """See Codec."""
        return PAIR * self.kept(elements)


@dataclass(frozen=True)
class MSTopK(Sparse):
    """``mstopk``: about the largest elements, by a search for a threshold that samples |x|.

    Shi et al., "Towards scalable distributed training of deep learning on public cloud clusters",
    MLSys 2021 (arXiv 2010.10458).
    """

    _NAMES: ClassVar[tuple[str, ...]] = ("mstopk",)

    name: str = field(default="mstopk", init=False)
    #: ``tracked``: the search starts at the threshold of the step before. ``exact``: what it finds
    #: is resolved to the true largest elements. ``reference``: the bisection as published, on CPUs.
    mode: str = "tracked"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} of mstopk (expected one of {', '.join(MODES)})")


@dataclass(frozen=True)
class RandomK(Sparse):
    """``randomk``: elements at places that all ranks choose alike by chance, in every step anew.

    So no indices travel, and what is there is added up by an all-reduce (Stich et al., "Sparsified
    SGD with memory", NeurIPS 2018, arXiv 1809.07599, section 2). One place is chosen of each of so
    many runs of consecutive elements as are sent.
    """

    _NAMES: ClassVar[tuple[str, ...]] = ("randomk",)

    name: str = field(default="randomk", init=False)
    #: Whether what is sent is multiplied by the length of its run, so that sums are right in the
    #: mean. Such sums have a large variance, with which residuals would grow: keep none.
    unbiased: bool = False

    def wire_bytes(self, elements: int) -> int:
        """See Codec."""
        return FLOAT32 * self.kept(elements)


@dataclass(frozen=True)
class PowerSGD(Codec):
    """``powersgd``: matrices as products of two thin ones, which ranks sum up one after the other.

    Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019 (arXiv 1905.13727). Gradients alone have
    it, of `DistributedOptimizer`, for each step begins with what the one before has found.
    """

    _NAMES: ClassVar[tuple[str, ...]] = ("powersgd",)

    name: str = field(default="powersgd", init=False)
    #: Columns of the thin matrices.
    rank: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1:
            raise ValueError(f"rank {self.rank} of powersgd (expected 1 or more; 4 suits most)")

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether the thin ones are less than half as long as the matrix of the first dimension."""
        if len(shape) < 2 or 0 in shape:
            return False
        rows, columns = shape[0], math.prod(shape[1:])
        return 2 * self.rank * (rows + columns) < rows * columns

    def wire_bytes(self, elements: int) -> int:
        """Of a square matrix of so many elements, which gets shorter than any other of them."""
        side = math.ceil(math.sqrt(_checked(elements)))
        return min(FLOAT32 * elements, FLOAT32 * 2 * min(self.rank, side) * side)


NONE, BF16 = Cast("none"), Cast("bf16")
#: All codecs with their defaults, by name.
KNOWN: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        NONE,
        Cast("fp16"),
        BF16,
        Quantised("int8"),
        Quantised("int4"),
        Quantised("fp8"),
        MSTopK(),
        Sparse("topk"),
        RandomK(),
        PowerSGD(),
    )
}


def parse(text: str) -> Codec:
    """The codec that ``int8``, ``int8:block=512``, ``mstopk:density=0.001,mode=exact`` ... name.

    Raises ValueError, which names what is wrong.
    """
    return spelling.parse(text, KNOWN, "codec")


def _checked(elements: int) -> int:
    if elements < 0:
        raise ValueError(f"{elements} elements (expected 0 or more)")
    return elements
