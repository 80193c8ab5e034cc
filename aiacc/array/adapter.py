"""Which arrays the core takes, where they live, and what to tell the owner of another one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from aiacc import _core
from aiacc.array import device_arrays
from aiacc.collectives.dtypes import DTYPE_CODES, carrier_of
from aiacc.collectives.memory import lacks_memory

Array = npt.NDArray[Any]


class View(NamedTuple):
    """An array as the core takes it."""

    #: NumPy's view of what is in host memory; what is on a CUDA device itself.
    array: Any
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    code: int
    #: Of the CUDA device, or -1: host memory.
    device: int
    #: Of the array's library, when the view was made.
    stream: int
    #: Extents of dimensions behind those of the array, see `dtypes.carrier_of`.
    behind: tuple[int, ...]

    @property
    def spec(self) -> tuple[tuple[int, ...], int, int]:
        """What `submission` wants to know of it."""
        return (*self.shape, *self.behind), self.code, self.device

    def shape_of(self, produced: tuple[int, ...]) -> tuple[int, ...]:
        """Of what the core has produced in this shape, as elements of the dtype."""
        return produced[: len(produced) - len(self.behind)]

    def empty(self, shape: tuple[int, ...]) -> Any:
        """A new array of the same dtype in the same place."""
        if self.device < 0:
            return np.empty(shape, self.dtype)
        return device_arrays.empty(self.array, shape, self.device)

    def stream_now(self) -> int:
        """The stream on which the owner of an array on a CUDA device works by now."""
        return device_arrays.stream_of(self.array)


def view_of(array: Any, what: str, moved: bool = False) -> View:
    """What the core has to know of ``array``.

    Args:
        array: Anything with NumPy's array interface, the CUDA array interface, or DLPack; also a
            number, or a list of numbers, nested or not, as `numpy.asarray` takes them.
        what: What it is given for, such as ``"allreduce of 'loss'"``.
        moved: Whether its elements are only moved; they may be of any dtype then.

    Raises:
        TypeError: It has none of them.
        ValueError: The core does not take it; the text says why and what to do.
    """
    return _view_of(array, what, moved)[0]


def writable_view_of(array: Any, what: str, moved: bool = False) -> View:
    """Like `view_of`, for memory that the operation overwrites.

    Raises:
        ValueError: Also if the array must not be written.
    """
    view, writable = _view_of(array, what, moved)
    if not writable:
        raise ValueError(
            f"[array] {what}: array that must not be written (expected a writable one); "
            "use the operation without underscore, or array.copy()"
        )
    return view


def address_of(array: Any) -> int:
    """Address of the memory of an array that `View.empty` made."""
    host = hasattr(array, "__array_interface__")
    interface = array.__array_interface__ if host else array.__cuda_array_interface__
    address: int = interface["data"][0]
    return address


def check_rows(view: View, what: str) -> None:
    """Raise ValueError for an array that has no first dimension."""
    if not view.shape:
        raise ValueError(
            f"[array] {what}: array without dimensions (expected at least one, the first of which "
            "is divided among the ranks); use array.reshape(1)"
        )


def wait(handle: int, views: list[View]) -> None:
    """Wait for an operation on ``views``, which are in one place; see `handles.synchronize`."""
    if views[0].device < 0:
        _core.wait(handle)
    else:
        _core.wait(handle, views[0].stream_now())


def take_output(handle: int, like: View) -> Any:
    """What a finished all-gather produced, as an array like the one that was given."""
    return take_outputs(handle, [like])[0]


def take_outputs(handle: int, likes: list[View]) -> list[Any]:
    """What a finished all-gather of several arrays produced, as arrays like those given."""
    if likes[0].device < 0:
        return [
            data.view(like.dtype).reshape(like.shape_of(shape))
            for (data, shape), like in zip(_core.take_outputs(handle), likes, strict=True)
        ]
    return _taken(handle, likes)[0]


def take_alltoall(handle: int, like: View) -> tuple[Any, tuple[int, ...]]:
    """What a finished all-to-all produced, and the rows received from every rank."""
    if like.device < 0:
        data, shape, received = _core.take_alltoall(handle)
        return data.view(like.dtype).reshape(like.shape_of(shape)), received
    (output,), received = _taken(handle, [like])
    return output, received


def _taken(handle: int, likes: list[View]) -> tuple[list[Any], tuple[int, ...]]:
    """The core's output in memory of the arrays' library, whose size is known only now."""
    shapes = _core.output_shapes(handle)
    outputs = [like.empty(like.shape_of(shape)) for like, shape in zip(likes, shapes, strict=True)]
    addresses = tuple(map(address_of, outputs))
    return outputs, _core.take_into(handle, addresses, likes[0].stream_now())


def _view_of(array: Any, what: str, moved: bool) -> tuple[View, bool]:
    if not hasattr(array, "__array_interface__"):
        if hasattr(array, "untyped_storage") and lacks_memory(array):
            raise ValueError(
                f"[array] {what}: {type(array).__name__} that has no memory of its own (expected "
                "one that wraps no other, and whose storage was not freed); give what has its "
                "values, such as tensor.to_local() of a DTensor"
            )
        if device_arrays.is_on_device(array):
            return _device_view_of(array, what, moved)
        if hasattr(array, "__dlpack__"):
            array = _exported(array, what)
        elif isinstance(array, bool | int | float | list | tuple):
            array = _array_of(array, what)
        else:
            raise TypeError(
                f"[array] {what}: {type(array).__name__} (expected a number, a list of numbers, "
                "NumPy's array interface, the CUDA array interface or DLPack); convert it with "
                "numpy.asarray, or use broadcast_object or allgather_object for objects"
            )
    if hasattr(array, "filled"):
        raise ValueError(
            f"[array] {what}: masked array (expected one without a mask, which would not travel); "
            "use array.filled(...)"
        )
    view = np.asarray(array)
    code, behind = _carrier_of(view.dtype, what, moved)
    if not view.flags.c_contiguous:
        raise _strided(view.shape, view.strides, what)
    address = view.__array_interface__["data"][0]
    made = View(view, address, view.shape, view.dtype, code, -1, 0, behind)
    return made, view.flags.writeable and not isinstance(array, np.generic)  # of which it is a copy


def _exported(array: Any, what: str) -> Array:
    """NumPy's view of what has DLPack, if that has a word for it."""
    kind = type(array).__name__
    if hasattr(array, "is_neg") and array.is_neg():  # torch exports it as it lies in memory
        raise ValueError(
            f"[array] {what}: {kind} whose memory has the negated values, as of .conj().imag "
            "(expected one that has its own values); use tensor.resolve_neg()"
        )
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"[array] {what}: {kind} that NumPy does not take: {error} (expected one for "
            "numpy.from_dlpack); use the front-end of its library, such as aiacc.torch"
        ) from error


def _array_of(numbers: Any, what: str) -> Array:
    """A new array of a Python number or of lists of them, read-only: nobody would see a result."""
    try:
        array = np.array(numbers)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"[array] {what}: {type(numbers).__name__} that makes no array: {error} (expected "
            "numbers in lists of equal lengths)"
        ) from error
    array.flags.writeable = False
    return array


def _device_view_of(array: Any, what: str, moved: bool) -> tuple[View, bool]:
    array = device_arrays.with_interface(array, what)
    interface = array.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), getattr(array, "dtype", None)
    if not isinstance(dtype, np.dtype):  # which says more: the interface has no 8-bit floats
        dtype = np.dtype(interface["typestr"])
    code, behind = _carrier_of(dtype, what, moved)
    strides = interface.get("strides")
    if strides is not None and not _is_contiguous(shape, tuple(strides), dtype.itemsize):
        raise _strided(shape, tuple(strides), what)
    device, stream = device_arrays.device_of(array, what), device_arrays.stream_of(array)
    address, read_only = interface["data"]
    return View(array, address, shape, dtype, code, device, stream, behind), not read_only


def _carrier_of(dtype: np.dtype[Any], what: str, moved: bool) -> tuple[int, tuple[int, ...]]:
    if dtype.name in DTYPE_CODES and dtype.isnative:
        return DTYPE_CODES[dtype.name], ()
    if moved and dtype.isnative and not dtype.hasobject:
        return carrier_of(*_description_of(dtype))
    if dtype.hasobject:
        remedy = "use broadcast_object or allgather_object"
    elif dtype.kind == "c":
        part = f"float{dtype.itemsize * 4}"
        remedy = f"use array.view({part!r}), and .view({dtype.name!r}) of the result"
    else:
        remedy = "convert it with array.astype(...)"
    raise ValueError(
        f"[array] {what}: array of dtype {dtype!s} (expected one of "
        f"{', '.join(DTYPE_CODES)}, in native byte order); {remedy}"
    )


def _description_of(dtype: np.dtype[Any]) -> tuple[str, int, object]:
    """What makes dtypes equal: name and size of an element, and fields or shape if it has some."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return "array", dtype.itemsize, (shape, _description_of(base))
    if not issubclass(dtype.type, np.void):
        return dtype.name, dtype.itemsize, None
    if dtype.fields is None:
        return "void", dtype.itemsize, None
    # A field that has a title comes twice, by that too.
    fields = [
        (name, at, title, _description_of(of)) for name, (of, at, *title) in dtype.fields.items()
    ]
    return "void", dtype.itemsize, (dtype.names, fields)


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> bool:
    expected = item_bytes
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != expected:
            return 0 in shape
        expected *= extent
    return True


def _strided(shape: tuple[int, ...], strides: tuple[int, ...], what: str) -> ValueError:
    return ValueError(
        f"[array] {what}: array of shape {shape} with strides {strides} bytes "
        "(expected contiguous memory in C order); use numpy.ascontiguousarray"
    )
