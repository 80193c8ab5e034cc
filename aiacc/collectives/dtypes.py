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
