"""Arrays in the memory of a CUDA device, such as CuPy's: what their interfaces say.

Nothing here makes the host wait for a GPU, and nothing imports CuPy unless an array asks for it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

#: DLPack's numbers of the kinds of memory on a CUDA device: plain and managed.
_DLPACK_CUDA = (2, 13)


def is_on_device(array: Any) -> bool:
    """Whether ``array`` says that its memory is on a CUDA device."""
    if hasattr(array, "__cuda_array_interface__"):
        return True
    return hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] in _DLPACK_CUDA


def with_interface(array: Any, what: str) -> Any:
    """``array``, or CuPy's view of one that has only DLPack.

    Raises:
        TypeError: There is no CuPy to read DLPack with.
    """
    if hasattr(array, "__cuda_array_interface__"):
        return array
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise TypeError(
            f"[array] {what}: {type(array).__name__} on a CUDA device, with DLPack alone (expected "
            "the CUDA array interface); install cupy, which reads DLPack"
        ) from error
    return cupy.from_dlpack(array)


def device_of(array: Any, what: str) -> int:
    """Ordinal of the device of ``array``, which the CUDA array interface does not tell; -1: none.

    Raises:
        TypeError: The array does not tell it either.
    """
    if not hasattr(array, "__dlpack_device__"):
        raise TypeError(
            f"[array] {what}: {type(array).__name__} that does not say on which CUDA device it is "
            "(expected the method __dlpack_device__); convert it with cupy.asarray"
        )
    kind, ordinal = array.__dlpack_device__()
    return int(ordinal) if kind in _DLPACK_CUDA else -1


def stream_of(array: Any) -> int:
    """The stream on which the owner of ``array`` uses it now, as the driver knows it.

    Version 3 of the interface says so: 1 is the legacy default stream (0 for the driver), 2 that of
    the calling thread. Of None, which means that nothing has to be waited for, and of older
    versions, the legacy default stream is taken.
    """
    stream = array.__cuda_array_interface__.get("stream")
    return 0 if stream in (None, 1) else int(stream)


def empty(like: Any, shape: tuple[int, ...], device: int) -> Any:
    """A new array of the library of ``like``, of its dtype.

    Raises:
        ValueError: The library makes it on another device than ``device``, that of ``like``.
    """
    made = _library_of(like).empty(shape, dtype=like.dtype)
    its_device = device_of(made, "result")
    if its_device != device:
        raise ValueError(
            f"[array] {type(like).__name__} on CUDA device {device}, and its library makes new "
            f"arrays on device {its_device} (expected the same; -1 is host memory); make device "
            f"{device} the current one"
        )
    return made


def _library_of(array: Any) -> Any:
    """The module with the functions for arrays like this one."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return sys.modules[type(array).__module__.partition(".")[0]]
