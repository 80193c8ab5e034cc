"""The data types that the core knows. Pure."""

from __future__ import annotations

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

#: Of what moves as bytes: how many dimensions of extent 1 follow, so that ranks whose dtypes are
#: not the same disagree about a shape. Complex numbers have one, others none.
_TOLD_APART = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)


def carrier_of(name: str, item_bytes: int) -> tuple[int, tuple[int, ...]]:
    """What elements travel as, which are moved and not added up, if the core lacks their dtype.

    Complex numbers are pairs of floats, others bytes. Pure.

    Args:
        name: Of the dtype.
        item_bytes: Of an element.

    Returns:
        Number of the core's dtype, and the extents of dimensions behind those of the tensor.
    """
    part = f"float{item_bytes * 4}"
    if name.startswith("complex") and part in DTYPE_CODES:
        return DTYPE_CODES[part], (2, 1)
    ones = _TOLD_APART.index(name) + 1 if name in _TOLD_APART else 0
    return DTYPE_CODES["uint8"], (item_bytes, *(1,) * ones)
