"""Codecs as numbers of the core: a wire format and what belongs to it. Pure."""

from __future__ import annotations

import math

from aiacc.compression.codecs import Cast, Codec, MSTopK, Quantised, RandomK, Sparse

#: The core's wire formats (csrc/base/dtype.h).
_FORMATS = {"none": 0, "fp16": 1, "bf16": 2, "int8": 5, "int4": 6, "fp8": 7}
_LARGEST, _RANDOM = 8, 9
#: Numbers of a format begin here; flags of csrc/engines/coding.h.
_NUMBERS = 256
_STOCHASTIC = 1 << 16
_MODES = {"tracked": 0, "exact": 1 << 20, "reference": 1 << 21}
_UNBIASED = 1 << 22
_MILLION = 1_000_000


def wire_of(codec: Codec) -> int:
    """What ``wire`` of a submission is for an all-reduce of float32 with this codec.

    Densities are rounded up to millionths.

    Raises:
        ValueError: The core has no such format.
    """
    if isinstance(codec, Cast):
        return _FORMATS[codec.name]
    if isinstance(codec, Quantised):
        number = codec.block + (_STOCHASTIC if codec.stochastic else 0)
        return _FORMATS[codec.name] + _NUMBERS * number
    if isinstance(codec, RandomK):
        return _sparse(_RANDOM, codec.density, _UNBIASED if codec.unbiased else 0)
    if isinstance(codec, Sparse):
        mode = codec.mode if isinstance(codec, MSTopK) else "exact"
        return _sparse(_LARGEST, codec.density, _MODES[mode])
    raise ValueError(
        f"codec {codec} of an operation (expected one that the core has, such as int8 or mstopk); "
        "reduce gradients with it, by torch's DistributedOptimizer"
    )


def is_coded(codec: Codec) -> bool:
    """Whether what travels are not elements: such an all-reduce takes residuals."""
    return not isinstance(codec, Cast)


def _sparse(wire_format: int, density: float, flags: int) -> int:
    # 0.00051 times a million is a little more than 510.
    millionths = max(1, math.ceil(round(density * _MILLION, 6)))
    return wire_format + _NUMBERS * (millionths + flags)
