"""Which arrays the core takes, and what to tell the owner of another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

#: Numbers of the core's data types (csrc/base/dtype.h) by NumPy's names. NumPy has no bfloat16 of
#: its own; ml_dtypes brings one of that name.
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
}

Array = npt.NDArray[Any]


def view_of(array: Any, what: str) -> tuple[Array, int, int]:
    """NumPy's view of ``array``, the address of its memory and the number of its dtype.

    Args:
        array: Anything with NumPy's array interface.
        what: What it is given for, such as ``"allreduce of 'loss'"``.

    Raises:
        TypeError: It has no array interface.
        ValueError: The core does not take it; the text says why and what to do.
    """
    if not hasattr(array, "__array_interface__"):
        raise TypeError(
            f"[array] {what}: {type(array).__name__} (expected NumPy's array interface); "
            "convert it with numpy.asarray"
        )
    view = np.asarray(array)
    code = DTYPE_CODES.get(view.dtype.name)
    if code is None or not view.dtype.isnative:
        raise ValueError(
            f"[array] {what}: array of dtype {view.dtype!s} (expected one of "
            f"{', '.join(DTYPE_CODES)}, in native byte order); convert it with array.astype(...)"
        )
    if not view.flags.c_contiguous:
        raise ValueError(
            f"[array] {what}: array of shape {view.shape} with strides {view.strides} bytes "
            "(expected contiguous memory in C order); use numpy.ascontiguousarray"
        )
    return view, view.__array_interface__["data"][0], code


def writable_view_of(array: Any, what: str) -> tuple[Array, int, int]:
    """Like `view_of`, for memory that the operation overwrites.

    Raises:
        ValueError: Also if the array must not be written.
    """
    view, address, code = view_of(array, what)
    if not view.flags.writeable:
        raise ValueError(
            f"[array] {what}: array that must not be written (expected a writable one); "
            "use the operation without underscore, or array.copy()"
        )
    return view, address, code


def check_rows(array: Array, what: str) -> None:
    """Raise ValueError for an array that has no first dimension."""
    if array.ndim == 0:
        raise ValueError(
            f"[array] {what}: array without dimensions (expected at least one, the first of which "
            "is divided among the ranks); use array.reshape(1)"
        )
