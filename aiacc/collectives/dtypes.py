"""The data types that the core knows. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

#: Numbers of the core's data types (csrc/base/dtype.h) by the names that NumPy, torch and
#: TensorFlow give them. NumPy has no bfloat16 of its own; ml_dtypes brings one of that name.
DTYPE_CODES: dict[str, int] = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bool": 9,
    "bfloat16": 10,
    "uint32": 11,
    "uint64": 12,
}

#: Codes are below this. What is above it, of an element that travels as others, is a digest of its
#: dtype, on which ranks agree where elements are only moved.
CODES = 1 << 8
_DIGESTS = 1 << 52


def carrier_of(
    name: str, item_bytes: int, description: object = None
) -> tuple[int, tuple[int, ...]]:
    """What elements travel as, which are moved and not added up, if the core lacks their dtype.

    Complex numbers are pairs of floats, others bytes. Pure.

    Args:
        name: Of the dtype.
        item_bytes: Of an element.
        description: What else of the dtype makes it another one than those of its name; its text
            is the same on all ranks.

    Returns:
        Number of the core's dtype with a digest of this one, see `CODES`; and the extents of
        dimensions behind those of the tensor.
    """
    digest = _digest_of((name, item_bytes, description))
    part = f"float{item_bytes * 4}"
    if name.startswith("complex") and part in DTYPE_CODES:
        return DTYPE_CODES[part] + digest * CODES, (2, 1)
    return DTYPE_CODES["uint8"] + digest * CODES, (item_bytes,)


def core_code(code: int) -> int:
    """The number of the core's dtype, without a digest. Pure."""
    return code % CODES


def factor_of(codes: Sequence[int]) -> float:
    """What stands for the digests of a tensor, or of those of a group, in the core. Pure.

    Returns:
        1.0 if there are none, else a factor of at least 1 by which nothing is multiplied: the core
        lets ranks agree on factors, which operations that only move elements have no other use for.
    """
    digests = tuple(code // CODES for code in codes)
    digest = digests[0]
    if len(digests) > 1 and any(digests):
        digest = _digest_of(digests)
    return 1.0 + digest / _DIGESTS


def _digest_of(what: object) -> int:
    """Above 0."""
    number = int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "little")
    return number % (_DIGESTS - 1) + 1
